"""All checks in order. Imports MLX: prepare the backend first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from model.backend import detect, without_kernels
from model.checkpoint.fingerprint import ModelFingerprint
from model.checkpoint.load import evaluate, load, read_modules
from model.checkpoint.weights import parameters
from model.device import Device
from model.forward import Forward
from model.text.tokenizer import TextTokenizer
from server.check.kernels import check_kernels
from server.check.machine import describe_machine, describe_model
from server.check.passes import check_passes
from server.check.result import Section
from server.check.speed import check_speed, time_mlx_lm, time_ours
from server.check.walk import check_walk

_FALLBACK = (
    "Plain operations agree: `crossturn serve --no-kernels` answers correctly here, only slower. Please "
    "report the table."
)
_NO_FALLBACK = "Plain operations do not agree either: do not trust replies of this model on this machine."


def check(path: Path, dtype: str | None, tell: Callable[[Section], None]) -> list[Section]:
    """Check the checkpoint in ``path`` on this machine's device.

    Args:
        dtype: what to compute in; None for what `crossturn serve` takes.
        tell: called with each section as soon as it is there.

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
    modules = read_modules(path, dtype=dtype or device.dtype)
    evaluate(modules.model)
    n_bytes = sum(w.nbytes for w in parameters(modules.model).values())
    add(describe_model(modules.config, modules.dtype, n_bytes))
    theirs = time_mlx_lm(modules.model, modules.config.vocab_size)
    fingerprint = ModelFingerprint(0, 0, modules.dtype)
    forward = Forward(modules.model.language_model, modules.config, fingerprint, device)
    mx.clear_cache()
    passes, walk = check_passes(forward, device), check_walk(forward, device, tokenizer)
    add(passes)
    add(walk)
    add(check_speed(time_ours(forward), theirs, mx.get_peak_memory()))
    if kernels.differing or passes.differing or walk.differing:
        del forward, modules  # two of a large model may be one too many
        add(_fallback(path, dtype, device, tokenizer))
    return done


def _fallback(path: Path, dtype: str | None, device: Device, tokenizer: TextTokenizer) -> Section:
    """Whether the model can be trusted without the device's kernels."""
    plain = load(path, dtype=dtype, device=without_kernels(device))
    section = Section("without kernels of its own")
    agrees = not (check_passes(plain, device).differing or check_walk(plain, device, tokenizer).differing)
    section.notes.append(_FALLBACK if agrees else _NO_FALLBACK)
    return section
