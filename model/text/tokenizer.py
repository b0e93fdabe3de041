"""Text to token ids and back, by the checkpoint's ``tokenizer.json`` (byte-level BPE, no transformers).

Two ways in. :meth:`TextTokenizer.encode` is the plain tokenizer: a control string such as
``<|im_end|>`` becomes its control id. :meth:`TextTokenizer.encode_text` never makes a control id,
whatever the text says: it runs an encoder from which every added token was removed. The chat format
uses the second for everything between the control tokens that the template itself wrote. Added tokens
cut the text before normalisation and pre-tokenisation, so both ways agree wherever no control string
stands.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from model.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token added beside the BPE vocabulary: one id for one fixed string.

    Attributes:
        hidden: it never shows as text in a reply (``<|im_end|>``; not ``</think>``, which the
            reader of the reply needs).
        strips_left, strips_right: the plain tokenizer drops white space on that side of it.
    """

    id: int
    text: str
    hidden: bool
    strips_left: bool = False
    strips_right: bool = False


class TextTokenizer:
    """A checkpoint's tokenizer.

    Attributes:
        controls: the added tokens by their text.
        n_tokens: ids run from 0 to ``n_tokens - 1`` (a model's vocabulary may be padded beyond).
        eos_ids: ids that end a reply, ascending.
        named_tokens: ``bos_token``, ``eos_token`` and their like, as templates expect them.
        chat_template: the template's source, None for a base model without one.
        fingerprint, template_fingerprint: 64-bit hashes of the files' content.
        definition: ``tokenizer.json`` as text, for libraries that build their own tables from it.
    """

    def __init__(
        self,
        definition: str,
        *,
        eos_ids: Iterable[int] = (),
        named_tokens: dict[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        parsed = _parse_definition(definition)
        self.definition = definition
        self.controls = {token.text: token for token in _control_tokens(parsed)}
        self._with_controls = Tokenizer.from_str(definition)
        self._without_controls = Tokenizer.from_str(json.dumps(parsed | {"added_tokens": []}))
        self._bytes = _bytes_by_id(parsed, self.controls)
        self._control_pattern = _pattern_of(self.controls)
        self._can_cut = has_known_borders(parsed)
        self._strips = any(t.strips_left or t.strips_right for t in self.controls.values())
        self.n_tokens = len(self._bytes)
        self.hidden_ids = frozenset(token.id for token in self.controls.values() if token.hidden)
        self.named_tokens = named_tokens or {}
        self.eos_ids = tuple(sorted({*eos_ids, *self._named_eos_ids()}))
        self.chat_template = chat_template
        self.fingerprint = _hash64(definition)
        self.template_fingerprint = _hash64(chat_template or "")

    @classmethod
    def from_dir(cls, path: Path) -> TextTokenizer:
        """Read the tokenizer, its template and the ids that end a reply from a checkpoint's folder.

        Raises:
            CheckpointError: a file is missing, unreadable, or not a byte-level BPE.
        """
        try:
            definition = (path / "tokenizer.json").read_text(encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"no readable tokenizer.json in {path}") from error
        config = _read_json(path / "tokenizer_config.json")
        return cls(
            definition,
            eos_ids=_eos_ids(path),
            named_tokens=_named_tokens(config),
            chat_template=_read_template(path, config),
        )

    def encode(self, text: str) -> NDArray[np.uint32]:
        """Ids [n] of the plain tokenizer: control strings in ``text`` become control ids."""
        return _ids(self._with_controls, text)

    def encode_text(self, text: str) -> NDArray[np.uint32]:
        """Ids [n] of ``text`` as nothing but text: it holds no control id, whatever was typed."""
        return _ids(self._without_controls, text)

    def min_tokens(self, text: str) -> int:
        """A number of tokens that ``text`` has at least, told without encoding it: 2 ms for a megabyte.

        No token has more digits, or lower-case letters, and so on, than the one that has most of them.
        """
        counts = np.zeros(256, dtype=np.int64)
        for start in range(0, len(text), COUNTED_CHARS):
            data = well_formed(text[start : start + COUNTED_CHARS]).encode("utf-8", "replace")
            counts += np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)
        # Normalising may join a letter with the accent behind it, so that ASCII counts for less.
        n_others = int(counts[128:].sum())
        bounds = [
            -(-(int(counts[group].sum()) - n_others) // most)
            for group, most in zip(BYTE_GROUPS, self._most_in_a_token, strict=True)
            if most
        ]
        return max(0, *bounds)

    @cached_property
    def _most_in_a_token(self) -> list[int]:
        """How many bytes of each of :data:`BYTE_GROUPS` a single token has at most; 0 for one that may
        vanish, as white space does beside control tokens that strip it."""
        most = []
        for group in BYTE_GROUPS:
            members = bytes(group.tolist())
            counts = (len(data) - len(data.translate(None, members)) for data in self._bytes)
            most.append(0 if self._strips and b" " in members else max(counts, default=0))
        return most

    def split(self, text: str) -> list[str]:
        """``text`` cut at control strings: plain text at even indices, control strings at odd ones."""
        segments = self._control_pattern.split(text) if self._control_pattern else [text]
        return self._stripped(segments) if self._strips else segments

    def control_ids(self, text: str) -> NDArray[np.uint32]:
        """The id [1] of the control token that ``text`` is."""
        return np.array([self.controls[text].id], dtype=np.uint32)

    def pieces(self, text: str) -> list[str]:
        """``text`` cut into paragraphs, and very long ones into lines or words, between which the ids of
        :meth:`encode_text` can be cut too. Tokenizers whose borders are not known to be safe get it
        back whole."""
        return cut(text) if self._can_cut else [text]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; empty for ids the tokenizer does not know (padding rows)."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def decode(self, ids: Sequence[int] | NDArray[np.uint32], *, hide_controls: bool = False) -> str:
        """The text of ``ids``; bytes that are no UTF-8 become U+FFFD. Control tokens that are
        ``hidden`` in replies are left out when ``hide_controls`` is set."""
        kept = (int(i) for i in ids if not (hide_controls and int(i) in self.hidden_ids))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", errors="replace")

    def _named_eos_ids(self) -> list[int]:
        names = {self.named_tokens.get("eos_token"), "<|im_end|>", "<|endoftext|>"}
        return [self.controls[name].id for name in names if name in self.controls]

    def _stripped(self, segments: list[str]) -> list[str]:
        for index in range(1, len(segments), 2):
            token = self.controls[segments[index]]
            if token.strips_left:
                segments[index - 1] = segments[index - 1].rstrip()
            if token.strips_right:
                segments[index + 1] = segments[index + 1].lstrip()
        return segments


COUNTED_CHARS = 2**20
BYTE_GROUPS = tuple(
    np.array([byte for byte in range(128) if belongs(chr(byte))])
    for belongs in (str.isdigit, str.islower, str.isupper, lambda char: not char.isalnum())
)
"""ASCII in groups that tokens do not mix as they like."""

SHOWN_CONTROLS = frozenset(
    {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}
)
"""Control tokens that are part of a reply's own markup, shown even where a file calls them special."""


def well_formed(text: str) -> str:
    """``text`` without lone surrogates: halves of a pair that stand together are joined, others become
    U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # Two halves of a pair may have arrived as two escapes: UTF-16 joins them, the rest is replaced.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _ids(encoder: Tokenizer, text: str) -> NDArray[np.uint32]:
    # A batch of one, because that lets other threads run meanwhile; without offsets it is also faster.
    (encoding,) = encoder.encode_batch_fast([well_formed(text)], add_special_tokens=False)
    return np.array(encoding.ids, dtype=np.uint32)


def _parse_definition(definition: str) -> dict[str, Any]:
    try:
        parsed = json.loads(definition)
        kind, decoder = parsed["model"]["type"], (parsed["decoder"] or {}).get("type")
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError("tokenizer.json is not a tokenizer definition") from error
    if kind != "BPE" or decoder != "ByteLevel":
        raise CheckpointError(f"tokenizer.json holds {kind} with decoder {decoder}, not a byte-level BPE")
    return dict(parsed)


def _control_tokens(parsed: dict[str, Any]) -> list[ControlToken]:
    return [
        ControlToken(
            id=int(entry["id"]),
            text=str(entry["content"]),
            hidden=bool(entry.get("special")) and entry["content"] not in SHOWN_CONTROLS,
            strips_left=bool(entry.get("lstrip")),
            strips_right=bool(entry.get("rstrip")),
        )
        for entry in parsed.get("added_tokens", [])
    ]


def _pattern_of(controls: dict[str, ControlToken]) -> re.Pattern[str] | None:
    longest_first = sorted(controls, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})") if controls else None


def _bytes_by_id(parsed: dict[str, Any], controls: dict[str, ControlToken]) -> list[bytes]:
    byte_of = {char: byte for byte, char in enumerate(_byte_alphabet())}
    vocab: dict[str, int] = parsed["model"]["vocab"]
    top = max([*vocab.values(), *(token.id for token in controls.values())], default=-1)
    table = [b""] * (top + 1)
    for text, token_id in vocab.items():
        # A control token may also stand in the vocabulary, spelled as plain text.
        known = all(char in byte_of for char in text)
        table[token_id] = bytes(byte_of[char] for char in text) if known else text.encode()
    for token in controls.values():
        table[token.id] = token.text.encode()
    return table


def _byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's scheme):
    printable Latin-1 stands for itself, the other bytes for the characters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.name} is not readable JSON") from error
    return content if isinstance(content, dict) else {}


def _eos_ids(path: Path) -> set[int]:
    """End-of-reply ids of generation_config.json, else of config.json (an int or a list of ints)."""
    config = _read_json(path / "config.json")
    text_config = config.get("text_config")
    nested = text_config if isinstance(text_config, dict) else {}
    for source in (_read_json(path / "generation_config.json"), config, nested):
        value = source.get("eos_token_id")
        if value is not None:
            return {int(i) for i in (value if isinstance(value, list) else [value])}
    return set()


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _read_template(path: Path, config: dict[str, Any]) -> str | None:
    """That of ``chat_template.jinja``, else of ``chat_template.json``, else (perhaps one of several) of
    ``tokenizer_config.json``."""
    file = path / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = _read_json(path / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _hash64(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


BORDERS = tuple(
    map(re.compile, (r"(?<=\n\n)(?=[A-Za-z])", r"(?<=\n)(?=[A-Za-z])", r"(?<=[A-Za-z])(?= [A-Za-z])"))
)
"""Where text may be cut: between a blank line and a letter, a line feed and a letter, a word and the
space before the next. No pattern below has a match that reaches over such a place or looks beyond it,
and no normal form joins the two sides."""
MAX_PIECE_CHARS = 16_384
FAMILY_PATTERNS = frozenset(
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}+|\p{{N}}| ?[^\s{others}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    for letters, others in ((r"\p{L}", r"\p{L}\p{N}"), (r"[\p{L}\p{M}]", r"\p{L}\p{M}\p{N}"))
)
"""How Qwen2 to 3 and Qwen3.5 cut text before BPE."""


def has_known_borders(definition: dict[str, Any]) -> bool:
    """Whether :data:`BORDERS` hold for a ``tokenizer.json``: its normaliser is NFC or none, and it cuts
    text by one of the family's patterns and nothing else."""
    normalizer, steps = definition.get("normalizer") or {}, definition.get("pre_tokenizer") or {}
    split, *rest = steps.get("pretokenizers") or [{}]
    if normalizer.get("type", "NFC") != "NFC" or split.get("type") != "Split" or len(rest) != 1:
        return False
    is_plain = rest[0].get("type") == "ByteLevel" and not rest[0].get("use_regex", True)
    pattern = (split.get("pattern") or {}).get("Regex")
    is_plain = is_plain and split.get("behavior") == "Isolated" and not split.get("invert")
    return is_plain and pattern in FAMILY_PATTERNS


def cut(text: str, level: int = 0) -> list[str]:
    """Pieces at the borders of ``level``; those that are too long, at the borders of the next."""
    pieces: list[str] = []
    for piece in BORDERS[level].split(text):
        if len(piece) > MAX_PIECE_CHARS and level + 1 < len(BORDERS):
            pieces += _grouped(cut(piece, level + 1))
        else:
            pieces.append(piece)
    return pieces


def _grouped(pieces: Sequence[str]) -> list[str]:
    """Neighbours joined up to a handy size."""
    groups: list[list[str]] = []
    n_chars = MAX_PIECE_CHARS
    for piece in pieces:
        if n_chars + len(piece) > MAX_PIECE_CHARS:
            groups.append([])
            n_chars = 0
        groups[-1].append(piece)
        n_chars += len(piece)
    return ["".join(group) for group in groups]
