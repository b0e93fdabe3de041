"""The sampling fields of a request over the model's defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model.errors import CheckpointError, InputError
from model.sampling import SamplingParams
from server.openai.chat_schema import SamplingFields

_OVERRIDABLE = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


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
    values: dict[str, Any] = {
        name: float(config[name]) for name in _OVERRIDABLE if config.get(name) is not None
    }
    return SamplingParams(**values, top_k=max(0, int(config.get("top_k") or 0)))


def sampling_of(fields: SamplingFields, defaults: SamplingParams, *, vocab_size: int) -> SamplingParams:
    """``defaults`` with everything that ``fields`` says.

    Raises:
        InputError: ``logit_bias`` names a token that the vocabulary lacks.
    """
    given: dict[str, Any] = {name: getattr(defaults, name) for name in SamplingParams.__slots__}
    for name in (*_OVERRIDABLE, "seed"):
        value = getattr(fields, name)
        if value is not None:
            given[name] = value
    if fields.top_k is not None:
        given["top_k"] = max(0, fields.top_k)
    given["logit_bias"] = _biases(fields, vocab_size)
    return SamplingParams(**given)


def stops_of(fields: SamplingFields) -> tuple[str, ...]:
    """The stop strings; empty ones stop nothing."""
    stops = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    return tuple(dict.fromkeys(stop for stop in stops if stop))


def _biases(fields: SamplingFields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = sorted((int(token), bias) for token, bias in (fields.logit_bias or {}).items())
    if biases and biases[-1][0] >= vocab_size:
        raise InputError(
            f"'logit_bias' names token {biases[-1][0]}; the vocabulary ends at {vocab_size - 1}.",
            param="logit_bias",
            code="invalid_value",
        )
    return tuple(biases)
