"""What the layers compute with on one device: chosen once, handed to each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.nn as nn

from model.backend import BackendKind, n_usable_cores
from model.checkpoint.config import ModelConfig
from model.devices.cpu.crew import Crew
from model.layers.add_norm import AddNorm, add_norm_for
from model.layers.delta_rule import DeltaRule, delta_rule_for
from model.layers.elementwise import Elementwise, elementwise_for
from model.layers.linear import Apply, apply_for
from model.layers.softmax_attention import Attend, attend_for
from model.layers.swiglu import Swiglu, swiglu_for


@dataclass(frozen=True, slots=True)
class Device:
    """The implementations that suit a device and the shapes of a model.

    Attributes:
        kind: which of them it is; layers of its own are made for the CPU and for CUDA.
        math: exponentials and what is made of them.
        apply: how a linear layer is applied.
        attend: scaled dot-product attention.
        rule: the gated delta rule.
        swiglu: the middle of a dense feed-forward block.
        add_norm: makes the residual sum and the norm after it.
        crew: the threads that share the work of long prompts on the CPU; they start when they are needed.
    """

    kind: BackendKind
    math: Elementwise
    apply: Apply
    attend: Attend
    rule: DeltaRule
    swiglu: Swiglu
    add_norm: Callable[[nn.Module], AddNorm]
    crew: Crew


def device_for(kind: BackendKind, config: ModelConfig) -> Device:
    """The implementations for a kind of device and a model."""
    math = elementwise_for(kind)
    return Device(
        kind=kind,
        math=math,
        apply=apply_for(kind),
        attend=attend_for(kind, math),
        rule=delta_rule_for(kind, config, math.exp),
        swiglu=swiglu_for(kind, math),
        add_norm=add_norm_for(kind),
        crew=Crew(n_usable_cores()),
    )
