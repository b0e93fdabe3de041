"""Keeps what follows a reply's thought to a grammar, by masking logits. llguidance does the parsing.

Grammars are text (llguidance's JSON form) so that they can cross from the thread that reads requests to
the one that owns the model: :func:`json_schema` and :mod:`model.text.callgrammar` write them,
:class:`GrammarTable` turns them into a :class:`Grammar` for one reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import llguidance
import mlx.core as mx
import numpy as np

from model.errors import InputError
from model.text.tokenizer import TextTokenizer

GAP = r"/\n{0,2}/"
"""What may stand between a thought and the content: the template writes two line feeds."""
SPACE = r"( |\n {0,64})?"
"""Between JSON's tokens: nothing, a space, or a new indented line. Without a bound a model can get lost
in white space that the grammar always allows."""
WORD_BITS = 32


def json_schema(schema: Mapping[str, Any], where: str = "response_format.json_schema.schema") -> str:
    """The grammar of the JSON texts that ``schema`` allows.

    Raises:
        InputError: the schema is invalid or uses what cannot be enforced; ``where`` names it.
    """
    return checked(f"start: {GAP} value\nvalue: {json_rule(schema, where)}\n", where)


def json_rule(schema: Mapping[str, Any], where: str) -> str:
    """``schema`` as the right side of a Lark rule.

    Raises:
        InputError: it is nested too deeply.
    """
    options = {"whitespace_flexible": True, "whitespace_pattern": SPACE}
    try:
        return f"%json {json.dumps({**schema, 'x-guidance': options})}"
    except RecursionError as error:
        raise InputError(f"{where} is nested too deeply", param=where) from error


def checked(lark: str, where: str) -> str:
    """A Lark grammar in the form that :class:`GrammarTable` takes.

    Raises:
        InputError: llguidance does not take it.
    """
    grammar: str = llguidance.LLMatcher.grammar_from_lark(lark)
    is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    if is_error:
        reason = " ".join(messages[0].split())
        raise InputError(f"{where} cannot be enforced: {reason}", param=where, code="invalid_schema")
    return grammar


class GrammarTable:
    """What all grammars of one model share: its tokens, as llguidance wants them.

    Args:
        tokenizer: of the model.
        vocab_size: V, the length of a row of logits; ids beyond the tokenizer are never allowed.

    Building it takes about a second for 250,000 tokens.
    """

    def __init__(self, tokenizer: TextTokenizer, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._tokens = llguidance.LLTokenizer(
            tokenizer.definition, n_vocab=vocab_size, eos_token=list(tokenizer.eos_ids)
        )

    def start(self, grammar: str) -> Grammar:
        """A fresh reading of ``grammar``.

        Raises:
            InputError: the grammar is too large for llguidance's limits.
        """
        matcher = llguidance.LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            raise InputError(f"the grammar cannot be used: {matcher.get_error()}")
        return Grammar(matcher, self._vocab_size)


class Grammar:
    """One reply's way through a grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def mask(self) -> mx.array:
        """Which tokens may come next: [V] bool. At the end of the grammar, those that end a reply."""
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)
        bits = (mx.array(words)[:, None] >> mx.arange(WORD_BITS, dtype=mx.uint32)) & 1
        return bits.reshape(-1)[: self._vocab_size].astype(mx.bool_)

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False, for good, when the grammar does not allow it."""
        return bool(self._matcher.consume_token(token_id))

    @property
    def is_accepting(self) -> bool:
        """The reply may end here."""
        return bool(self._matcher.is_accepting())
