"""Picks the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is picked. The defaults change nothing about the model's distribution.

    Attributes:
        temperature: 0 picks the likeliest token; else logits are divided by it.
        top_p: keep the fewest likeliest tokens whose probability reaches it; 1 keeps all.
        top_k: keep that many likeliest tokens; 0 keeps all, more than the vocabulary does no harm.
        min_p: keep tokens at least that likely relative to the likeliest; 0 keeps all.
        seed: the same seed gives the same reply, whatever else runs; None draws one.
        presence_penalty: taken off the logit of every token the reply already holds.
        frequency_penalty: the same, times how often the reply holds it.
        repetition_penalty: divides positive and multiplies negative logits of every token that the
            prompt or the reply holds; 1 does nothing.
        logit_bias: (token id, value added to its logit), ids ascending.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
