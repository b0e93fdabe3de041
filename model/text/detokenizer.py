"""Token ids to text as they come, in whole characters."""

from __future__ import annotations

import codecs

from model.text.tokenizer import TextTokenizer


class Detokenizer:
    """Text of one reply, token by token.

    A character whose bytes are spread over tokens comes with the last of them; bytes that can no longer
    become UTF-8 come as U+FFFD. Control tokens that are hidden in replies have no text. Joined, the
    pieces are what decoding all bytes at once gives.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that ``token_id`` completes; may be empty."""
        if token_id in self._tokenizer.hidden_ids:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)
