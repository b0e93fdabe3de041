"""What the layers compute with on one device: chosen once, handed to each of them."""

from __future__ import annotations

from dataclasses import dataclass

from model.backend import BackendKind
from model.checkpoint.config import ModelConfig
from model.layers import gdn_cuda
from model.layers.delta_rule import DeltaRule, delta_rule_for
from model.layers.elementwise import Elementwise, elementwise_for
from model.layers.linear import Apply, apply_for
from model.layers.softmax_attention import Attend, attend_for


@dataclass(frozen=True, slots=True)
class Device:
    """The implementations that suit a device and the shapes of a model.

    Attributes:
        math: exponentials and what is made of them.
        apply: how a linear layer is applied.
        attend: scaled dot-product attention.
        rule: the gated delta rule.
        fuses_steps: whether a GDN layer decodes in one CUDA kernel between its projections.
    """

    math: Elementwise
    apply: Apply
    attend: Attend
    rule: DeltaRule
    fuses_steps: bool


def device_for(kind: BackendKind, config: ModelConfig) -> Device:
    """The implementations for a kind of device and a model."""
    math = elementwise_for(kind)
    return Device(
        math=math,
        apply=apply_for(kind),
        attend=attend_for(kind, math),
        rule=delta_rule_for(kind, config, math.exp),
        fuses_steps=kind == "cuda" and gdn_cuda.can_step(config.conv_kernel, config.key_head_dim),
    )
