"""Conversations as the exact token ids the server would send, and which of them are the model's own.

`render` writes what model/demo/chat_template.jinja writes, some fifty times faster; a check in dataset.py
compares the two. The server encodes what a client typed as plain text, so no generated content carries
control tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from conversation import Message

HEAD = "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>"
TAIL = (
    "\n</tools>\n\nTo call a function, reply in this format and stop:\n\n"
    "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _calls(message: Message) -> str:
    parts = []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = "".join(
            f"<parameter={key}>\n{_value(value)}\n</parameter>\n"
            for key, value in function["arguments"].items()
        )
        parts.append(f"<tool_call>\n<function={function['name']}>\n{arguments}</function>\n</tool_call>")
    return "\n".join(parts)


def render(messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> str:
    """The whole conversation, ending behind the last assistant message."""
    out: list[str] = []
    system = messages[0]["content"].strip() if messages[0]["role"] == "system" else ""
    if tools:
        out += [HEAD, *("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools), TAIL]
        out.append(f"\n\n{system}<|im_end|>\n" if system else "<|im_end|>\n")
    elif messages[0]["role"] == "system":
        out.append(f"<|im_start|>system\n{system}<|im_end|>\n")
    last_query = max(i for i, message in enumerate(messages) if message["role"] == "user")
    for i, message in enumerate(messages):
        role, content = message["role"], message["content"].strip()
        if role == "user":
            out.append(f"<|im_start|>user\n{content}<|im_end|>\n")
        elif role == "assistant":
            out.append("<|im_start|>assistant\n")
            if i > last_query:
                out.append(f"<think>\n{message.get('reasoning_content', '').strip()}\n</think>\n\n")
            calls = _calls(message)
            out.append(content + ("\n\n" if content and calls else "") + calls + "<|im_end|>\n")
        elif role == "tool":
            if messages[i - 1]["role"] != "tool":
                out.append("<|im_start|>user")
            out.append(f"\n<tool_response>\n{content}\n</tool_response>")
            if i + 1 == len(messages) or messages[i + 1]["role"] != "tool":
                out.append("<|im_end|>\n")
    return "".join(out)


class Encoder:
    """Text to ids and a mask of the tokens to be learnt: everything an assistant message holds, `<|im_end|>`
    included, without the thought's opener (or the whole empty thought), which the server's prompt already
    carries."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.start = tokenizer.token_to_id("<|im_start|>")
        self.end = tokenizer.token_to_id("<|im_end|>")
        self.think = tokenizer.token_to_id("<think>")
        self.assistant = tokenizer.encode("assistant").ids
        self.empty = tokenizer.encode("<think>\n\n</think>\n\n").ids
        assert len(self.empty) == 4, "the empty thought is four tokens"

    def __call__(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self._mask(encoding.ids) for encoding in self.tokenizer.encode_batch_fast(list(texts))]

    def _mask(self, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
        array = np.asarray(ids, dtype=np.uint16)
        mask = np.zeros(len(ids), dtype=bool)
        starts = np.flatnonzero(array == self.start)
        ends = np.flatnonzero(array == self.end)
        n_role = len(self.assistant)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if ids[start + 1 : start + 1 + n_role] != self.assistant:
                continue
            first = start + 1 + n_role + 1  # the newline behind the role
            if ids[first] == self.think:
                first += 4 if ids[first : first + 4] == self.empty else 2
            mask[first : end + 1] = True
        return array, mask
