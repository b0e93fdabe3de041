"""How tokens are picked: what a request says, over the model's defaults."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from model.errors import CheckpointError, InputError
from model.sampling import SamplingParams
from server.turn.turn import Sampling

_DEFAULTS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""What ``generation_config.json`` may set, besides ``top_k``."""


def read_defaults(path: Path) -> SamplingParams:
    """What ``generation_config.json`` in the checkpoint at ``path`` says about sampling.

    Raises:
        CheckpointError: the file is there but is no JSON object.
    """
    file = path / "generation_config.json"
    if not file.is_file():
        return SamplingParams()
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} is not a JSON object")
    if config.get("do_sample") is False:
        config["temperature"] = 0.0
    values: dict[str, Any] = {name: float(config[name]) for name in _DEFAULTS if config.get(name) is not None}
    return SamplingParams(**values, top_k=max(0, int(config.get("top_k") or 0)))


def sampling_params(wanted: Sampling, defaults: SamplingParams, *, vocab_size: int) -> SamplingParams:
    """``defaults`` with everything that ``wanted`` says; a ``top_k`` below 0 is off, as 0 is.

    Raises:
        InputError: ``logit_bias`` names a token that the vocabulary lacks.
    """
    given: dict[str, Any] = {name.name: getattr(defaults, name.name) for name in fields(SamplingParams)}
    for name in fields(Sampling):
        value = getattr(wanted, name.name)
        if value is not None:
            given[name.name] = value
    given["top_k"] = max(0, given["top_k"])
    given["logit_bias"] = _biases(wanted, vocab_size)
    return SamplingParams(**given)


def _biases(wanted: Sampling, vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = sorted(wanted.logit_bias.items())
    if biases and not 0 <= biases[0][0] <= biases[-1][0] < vocab_size:
        beyond = biases[0][0] if biases[0][0] < 0 else biases[-1][0]
        raise InputError(
            f"'logit_bias' names token {beyond}; the vocabulary ends at {vocab_size - 1}.",
            param="logit_bias",
            code="invalid_value",
        )
    return tuple(biases)
