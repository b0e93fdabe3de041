"""What the check ran on: nothing that names a person, a machine or a path."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import mlx.core as mx

from model.checkpoint.config import ModelConfig
from model.device import Device
from server.check.result import Section

_PACKAGES = ("crossturn", "mlx", "mlx-cpu", "mlx-cuda-13", "mlx-metal", "mlx-lm", "numpy", "tokenizers")
# Of what MLX says of a device.
_KNOWN = ("architecture", "memory_size", "max_recommended_working_set_size", "max_buffer_length")


def describe_machine(device: Device) -> Section:
    """Versions, the device and its memory."""
    section = Section("machine")
    system = platform.mac_ver()[0] or platform.release()
    section.tell("system", f"{platform.system()} {system}, {platform.machine()}")
    section.tell("Python", f"{platform.python_version()} ({sys.implementation.name})")
    section.tell("packages", ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _version(name))))
    section.tell("device", device.name)
    section.tell("cores", str(os.cpu_count()))
    section.tell("memory for the model", f"{device.n_memory_bytes / 2**30:.1f} GiB")
    info = mx.device_info() if device.kind != "cpu" else {}
    for name in _KNOWN:
        if name in info:
            value = info[name]
            told = f"{value / 2**30:.1f} GiB" if isinstance(value, int) else str(value)
            section.tell(name.replace("_", " "), told)
    return section


def describe_model(config: ModelConfig, dtype: str, n_weight_bytes: int) -> Section:
    """The model by its shape, not by its name."""
    section = Section("model")
    kind = f"{config.n_experts} experts, {config.n_chosen} chosen" if config.n_experts else "dense"
    section.tell("shape", f"{config.model_type}, {config.n_layers} layers, {config.hidden_size} wide, {kind}")
    section.tell("heads", f"{config.n_heads} over {config.n_kv_heads}, {config.head_dim} wide")
    section.tell(
        "GDN heads",
        f"{config.n_value_heads} over {config.n_key_heads}, {config.value_head_dim} by {config.key_head_dim}",
    )
    section.tell("weights", f"{n_weight_bytes / 2**30:.2f} GiB, computed in {dtype}")
    return section


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
