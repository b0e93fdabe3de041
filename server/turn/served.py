"""The model that is served, as requests see it: its names, limits, sampling defaults and text functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.errors import CheckpointError, InputError, PromptTooLongError
from model.sampling import SamplingParams
from model.text.chat import RenderedPrompt
from server.client import ModelInfo
from server.errors import NotFoundError
from server.turn.turn import GrammarWriter, Sampling


class ChatRenderer(Protocol):
    """Renders conversations to prompts; implemented by :class:`model.text.chat.ChatFormat`."""

    @property
    def variables(self) -> frozenset[str]:
        """The template's own variables, such as ``enable_thinking``."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
        continue_final: bool = False,
        note: str | None = None,
        max_tokens: int | None = None,
    ) -> RenderedPrompt:
        """The prompt. Raises InputError, naming the message, for what the template cannot render."""
        ...

    def known_next(
        self,
        messages: Sequence[Mapping[str, Any]],
        reply: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> NDArray[np.uint32]:
        """The ids [n] with which the prompt after ``reply`` begins, whatever the next message is."""
        ...


class TokenTable(Protocol):
    """Converts text to ids and back; implemented by :class:`model.text.tokenizer.TextTokenizer`."""

    @property
    def controls(self) -> Mapping[str, Any]:
        """The control tokens by their text."""
        ...

    def encode(self, text: str) -> NDArray[np.uint32]:
        """Ids of ``text``, uint32 [n]; control strings in it become control tokens."""
        ...

    def min_tokens(self, text: str) -> int:
        """A lower bound on the number of ids of ``text``, found without encoding it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; incomplete characters become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A loaded model, and the names by which requests ask for it.

    Attributes:
        names: the names that requests may use; replies carry the first.
        aliases: the names that the operator gave; clients see these, or else only the first of ``names``.
        patterns: the operator's patterns of further names that requests may use.
        created: Unix time at which the model was loaded.
        sampling: the defaults from the checkpoint's generation_config.json.
    """

    names: tuple[str, ...]
    created: int
    info: ModelInfo
    aliases: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    chat: ChatRenderer = field(repr=False)
    tokens: TokenTable = field(repr=False)
    grammars: GrammarWriter = field(repr=False)
    sampling: SamplingParams = field(default_factory=SamplingParams)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def listed(self) -> tuple[str, ...]:
        return self.aliases or self.names[:1]

    def check_name(self, name: str | None) -> None:
        """Check the model that a request names, if it names one.

        Raises:
            NotFoundError: it is another model; nothing is ever loaded or fetched for a request.
        """
        if name is not None and not self._answers_to(name):
            raise NotFoundError(
                f"The model '{name}' does not exist here; this server has '{self.name}'.",
                param="model",
                code="model_not_found",
            )

    def _answers_to(self, name: str) -> bool:
        return name in self.names or any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def encode(self, text: str, *, param: str, n_contexts: int = 1) -> NDArray[np.uint32]:
        """The ids of a plain prompt, uint32 [n]. A prompt that cannot fit is refused before it is encoded.

        Args:
            param: the field that holds it.
            n_contexts: the longest that it may be, in contexts.

        Raises:
            PromptTooLongError: it is certainly longer than that.
        """
        limit = self.info.context_length * n_contexts
        n_tokens = self.tokens.min_tokens(text) if len(text) > limit else 0
        if n_tokens > limit:
            raise PromptTooLongError(n_tokens, limit, is_exact=False, param=param)
        return self.tokens.encode(text)

    def room_for(self, n_prompt: int, n_wanted: int | None, *, param: str = "messages") -> int:
        """The most tokens of a reply to a prompt of ``n_prompt``: ``n_wanted``, or what fits if that is less.

        Raises:
            PromptTooLongError: the prompt leaves no room for a single token.
        """
        limit = self.info.context_length
        if n_prompt >= limit:
            raise PromptTooLongError(n_prompt, limit, param=param)
        room = limit - n_prompt
        return room if n_wanted is None else min(n_wanted, room)


_DEFAULTS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""The parameters that ``generation_config.json`` may set, besides ``top_k``."""


def read_defaults(path: Path) -> SamplingParams:
    """The sampling defaults in ``generation_config.json`` of the checkpoint at ``path``, if it has that file.

    Raises:
        CheckpointError: the file is not a JSON object.
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
    """``defaults``, overridden by whatever ``wanted`` sets. A negative ``top_k`` means off, like 0.

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
