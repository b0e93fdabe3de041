"""``crossturn pack``: prefills a system prompt and tools into a file for ``--preload``."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.backend import prepare
from model.errors import CrossturnError
from server.commands.command import Command, bytes_in_words
from server.commands.options import add_settings, settings_of
from server.settings import Settings

if TYPE_CHECKING:
    from model.text.chat import ChatFormat, RenderedPrompt
    from server.engine.thread import Engine

_LOOK_S = 0.05


class PackError(CrossturnError):
    """The messages cannot be packed."""


def add_options(parser: ArgumentParser) -> None:
    """The messages, the file, and all settings: the model and its options must match the server's."""
    parser.add_argument(
        "--messages",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON: a chat request's body ('messages', 'tools', 'chat_template_kwargs'), or messages alone",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the pack")
    add_settings(parser)


def run(chosen: Namespace) -> int:
    """Load the model, prefill the prompt, write the file.

    Raises:
        CrossturnError: the messages, the model or the file cannot be used.
    """
    settings = settings_of(chosen)
    body = _body(chosen.messages)
    prepare()
    from model.checkpoint.hub import resolve
    from model.text.chat import ChatFormat
    from model.text.tokenizer import TextTokenizer
    from server.engine.thread import Engine
    from server.launch import engine_options

    path = resolve(settings.model)
    tokenizer = TextTokenizer.from_dir(path)
    prompt = known_beginning(ChatFormat(tokenizer), body)
    engine = Engine(engine_options(_alone(settings), path), tokenizer)
    engine.start()
    try:
        n_bytes = _pack(engine, prompt, chosen.output)
    finally:
        engine.stop(drain_s=0)
    print(f"{chosen.output}: {len(prompt.ids)} tokens, {bytes_in_words(n_bytes)}")
    return 0


def known_beginning(chat: ChatFormat, body: dict[str, Any]) -> RenderedPrompt:
    """The common beginning of all prompts with these messages and tools.

    Raises:
        InputError: the template cannot render them.
    """
    from model.text.blocks import n_common
    from model.text.chat import RenderedPrompt

    one, other = (
        chat.render(
            [*body["messages"], {"role": "user", "content": text}],
            tools=body.get("tools"),
            template_kwargs=body.get("chat_template_kwargs"),
        )
        for text in ("a", "0")
    )
    n = n_common(one.ids, other.ids)
    starts = tuple(start for start in one.message_starts if start < n)
    return RenderedPrompt(
        ids=one.ids[:n],
        message_starts=starts,
        message_roles=one.message_roles[: len(starts)],
        system_end=one.system_end,
    )


def _pack(engine: Engine, prompt: RenderedPrompt, output: Path) -> int:
    from cache.planner import SlotKey
    from server.events import WarmRequest

    engine.read_ahead(WarmRequest(id="pack", slot=SlotKey.PRELOADED, prompt=prompt))
    while (departure := engine.call(lambda store: store.depart(SlotKey.PRELOADED)).result()) is None:
        if engine.call(lambda store: store.counters.n_drops).result():
            raise PackError("the prompt could not be prefilled; see the log")
        time.sleep(_LOOK_S)
    try:
        with output.open("wb") as file:
            while (piece := engine.call(lambda _: departure.read()).result()) is not None:
                file.write(piece)
            return file.tell()
    except OSError as error:
        raise PackError(f"{output} cannot be written: {error.strerror}") from error


def _alone(settings: Settings) -> Settings:
    """The settings without anything that would be loaded from elsewhere or kept elsewhere."""
    return settings.model_copy(update={"cache_dir": None, "preload": (), "idle_prefill": True})


def _body(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PackError(f"--messages: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise PackError(f"--messages: {path} is not JSON: {error}") from None
    body = {"messages": body} if isinstance(body, list) else body
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise PackError(f"--messages: {path} has no list of messages")
    return body


PACK = Command(
    "pack", "read a system prompt and tools into a file that 'serve --preload' takes", add_options, run
)
