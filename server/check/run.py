"""All checks in order, and what they ran on. Imports MLX: prepare the backend first."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import mlx.core as mx

from model.backend import detect, without_kernels
from model.checkpoint.config import ModelConfig
from model.checkpoint.fingerprint import ModelFingerprint
from model.checkpoint.load import evaluate, load, read_modules
from model.checkpoint.weights import parameters
from model.device import Device
from model.forward import Forward
from model.text.tokenizer import TextTokenizer
from server.check.kernels import check_kernels
from server.check.passes import check_passes
from server.check.result import Section
from server.check.speed import check_speed, time_mlx_lm, time_ours
from server.check.walk import check_walk

_FALLBACK = (
    "Plain operations agree: `crossturn serve --no-kernels` answers correctly here, only slower. Please "
    "report the table."
)
_NO_FALLBACK = "Plain operations do not agree either: do not trust replies of this model on this machine."
_PACKAGES = ("crossturn", "mlx", "mlx-cpu", "mlx-cuda-13", "mlx-metal", "mlx-lm", "numpy", "tokenizers")
# The entries of MLX's device info that are reported.
_KNOWN = ("architecture", "memory_size", "max_recommended_working_set_size", "max_buffer_length")


def check(path: Path, dtype: str | None, tell: Callable[[Section], None]) -> list[Section]:
    """Check the checkpoint in ``path`` on this machine's device.

    Args:
        dtype: to compute in; None for the default of `crossturn serve`.
        tell: called with each section as soon as it is complete.

    Raises:
        ModelError: the checkpoint cannot be loaded.
    """
    device = detect()
    done: list[Section] = []

    def add(section: Section) -> None:
        done.append(section)
        tell(section)

    add(describe_machine(device))
    tokenizer = TextTokenizer.from_dir(path)
    kernels = check_kernels(path, device, dtype)
    add(kernels)
    mx.clear_cache()
    mx.reset_peak_memory()
    device.begin_loading()
    modules = read_modules(path, has_mtp=True, dtype=dtype or device.dtype)
    evaluate(modules.model)
    n_bytes = sum(w.nbytes for w in parameters(modules.model).values())
    add(describe_model(modules.config, modules.dtype, n_bytes, has_mtp=bool(modules.mtp_files)))
    theirs = time_mlx_lm(modules.model, modules.config.vocab_size)
    fingerprint = ModelFingerprint(0, 0, modules.dtype)
    forward = Forward(modules.model.language_model, modules.config, fingerprint, device)
    mx.clear_cache()
    passes, walk = check_passes(forward, device), check_walk(forward, device, tokenizer)
    add(passes)
    add(walk)
    add(check_speed(time_ours(forward), theirs, mx.get_peak_memory()))
    if kernels.differing or passes.differing or walk.differing:
        del forward, modules  # memory may not hold a large model twice
        add(_fallback(path, dtype, device, tokenizer))
    return done


def _fallback(path: Path, dtype: str | None, device: Device, tokenizer: TextTokenizer) -> Section:
    """Whether the model can be trusted without the device's kernels."""
    plain = load(path, dtype=dtype, device=without_kernels(device))
    section = Section("without kernels of its own")
    agrees = not (check_passes(plain, device).differing or check_walk(plain, device, tokenizer).differing)
    section.notes.append(_FALLBACK if agrees else _NO_FALLBACK)
    return section


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


def describe_model(config: ModelConfig, dtype: str, n_weight_bytes: int, *, has_mtp: bool) -> Section:
    """The model's shape, without its name."""
    section = Section("model")
    kind = f"{config.n_experts} experts, {config.n_chosen} chosen" if config.n_experts else "dense"
    section.tell("shape", f"{config.model_type}, {config.n_layers} layers, {config.hidden_size} wide, {kind}")
    section.tell("heads", f"{config.n_heads} over {config.n_kv_heads}, {config.head_dim} wide")
    section.tell(
        "GDN heads",
        f"{config.n_value_heads} over {config.n_key_heads}, {config.value_head_dim} by {config.key_head_dim}",
    )
    section.tell("weights", f"{n_weight_bytes / 2**30:.2f} GiB, computed in {dtype}")
    section.tell("MTP head", "there, makes drafts" if has_mtp else "none")
    return section


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
