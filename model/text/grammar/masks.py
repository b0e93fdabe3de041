"""Keeps what follows a reply's thought to a grammar, by masking logits. llguidance does the parsing."""

from __future__ import annotations

import llguidance
import mlx.core as mx
import numpy as np
from cachetools import LRUCache

from model.errors import GrammarError, InputError
from model.text.grammar.rules import PARSER_LIMITS
from model.text.tokenizer import TextTokenizer

WORD_BITS = 32
N_KEPT = 64
"""Compiled grammars that are kept: clients send the same schema again and again."""
_MAX_MESSAGE = 200


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

        self._compiled: LRUCache[str, llguidance.LLMatcher] = LRUCache(N_KEPT)

    def start(self, grammar: str) -> Grammar:
        """A fresh reading of ``grammar``, which :class:`~model.text.grammar.compiler.GrammarCompiler` has
        tried before.

        Raises:
            InputError: it cannot be compiled all the same.
        """
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=PARSER_LIMITS)
            if compiled.is_error():
                raise InputError(f"the grammar cannot be used: {compiled.get_error()}"[:_MAX_MESSAGE])
            self._compiled[grammar] = compiled
        return Grammar(compiled.deep_copy(), self._vocab_size)


class Grammar:
    """One reply's way through a grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def copy(self) -> Grammar:
        """The same place of the same grammar, for another reply."""
        return Grammar(self._matcher.deep_copy(), self._vocab_size)

    def mask(self) -> mx.array:
        """Which tokens may come next: [V] bool. At the end of the grammar, those that end a reply.

        Raises:
            GrammarError: the grammar can say no more: it grew beyond the library's limits, or a token was
                fed that it does not allow.
        """
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error().splitlines()[0][:_MAX_MESSAGE])
        bits = (mx.array(words)[:, None] >> mx.arange(WORD_BITS, dtype=mx.uint32)) & 1
        return bits.reshape(-1)[: self._vocab_size].astype(mx.bool_)

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False, for good, when the grammar does not allow it."""
        return bool(self._matcher.consume_token(token_id))

    @property
    def is_accepting(self) -> bool:
        """The reply may end here."""
        return bool(self._matcher.is_accepting())
