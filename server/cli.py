"""The ``crossturn`` command: its options, and plain words when it cannot start."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from model.backend import prepare
from model.errors import CrossturnError
from server.listen import listen
from server.settings import Settings, parse_bytes
from server.signals import SignalWatch

API_KEYS_VARIABLE = "CROSSTURN_API_KEYS"

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    chosen = parser().parse_args(arguments)
    settings = settings_of(chosen)
    try:
        serve(settings)
    except CrossturnError as error:
        print(f"crossturn: {error}", file=sys.stderr)
        return 1
    return 0


def serve(settings: Settings) -> None:
    """Check what is cheap to check, then load the model and serve it.

    Raises:
        CrossturnError: the server cannot start; the message is one line.
    """
    watch = SignalWatch()
    with listen(settings.host, settings.port) as listener, watch.running():
        prepare()
        # Only now may MLX be imported, and these modules are what does it.
        from server.launch import launch
        from server.log import set_up

        set_up(settings.log_level)
        launch(settings, listener, watch)


def settings_of(chosen: argparse.Namespace) -> Settings:
    """The settings that the parsed options stand for; API keys of the environment are added."""
    values = {name: value for name, value in vars(chosen).items() if value is not None and name != "command"}
    from_environment = os.environ.get(API_KEYS_VARIABLE, "").split(",")
    keys = (*values.pop("api_keys", ()), *(key.strip() for key in from_environment))
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Settings(**{**values, **lists}, api_keys=tuple(dict.fromkeys(key for key in keys if key)))


def parser() -> argparse.ArgumentParser:
    """All options. Their defaults are those of :class:`Settings`: what is not said is not set."""
    top = argparse.ArgumentParser(
        prog="crossturn",
        description="OpenAI-compatible chat server for Qwen3.5 hybrid models that never reads a "
        "conversation twice.",
    )
    top.add_argument("--version", action="version", version=f"crossturn {version('crossturn')}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a model over HTTP", allow_abbrev=False)
    _add_model_options(serve.add_argument_group("model"))
    _add_memory_options(serve.add_argument_group("memory"))
    _add_work_options(serve.add_argument_group("work"))
    _add_http_options(serve.add_argument_group("HTTP"))
    return top


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", help="demo, a directory, or a Hugging Face repository (default: demo)")
    group.add_argument(
        "--adapter-path", type=_directory, metavar="DIR", help="a LoRA adapter to put over the model"
    )
    group.add_argument(
        "--kv-bits",
        type=int,
        choices=(8, 4),
        help="store keys and values in so many bits: less memory a token, less exact (default: as computed)",
    )
    group.add_argument(
        "--served-model-name",
        dest="served_model_names",
        action="append",
        metavar="NAME",
        help="a further name that requests may use; repeatable, the first is the one replies carry",
    )
    group.add_argument(
        "--context-length",
        type=_positive(int),
        metavar="TOKENS",
        help="longest conversation, reply included (default: the model's limit)",
    )
    group.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        help="think or not where a request does not say (default: the model's template decides)",
    )


def _add_memory_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--memory-budget",
        dest="memory_budget_bytes",
        type=_size,
        metavar="SIZE",
        help="memory for retained conversations, e.g. 8GiB (default: from the machine)",
    )
    group.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="a folder that keeps conversations across restarts (default: none)",
    )
    group.add_argument(
        "--cache-dir-size",
        dest="cache_dir_bytes",
        type=_size,
        metavar="SIZE",
        help="what that folder may hold (default: 16GiB)",
    )
    _add_ring_options(group)


def _add_ring_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ring-count",
        type=_at_least_two,
        metavar="N",
        help=f"checkpoints kept of a conversation at most (default: {Settings().ring_count})",
    )
    group.add_argument(
        "--ring-ratio",
        type=_positive(float),
        metavar="R",
        help="their memory at most, as a share of the conversation's state "
        f"(default: {Settings().ring_ratio:g})",
    )


def _add_work_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-running",
        type=_positive(int),
        metavar="N",
        help=f"replies that are written together at most (default: {Settings().max_running})",
    )
    group.add_argument(
        "--max-waiting",
        type=_positive(int),
        metavar="N",
        help=f"requests that may wait; one more is refused (default: {Settings().max_waiting})",
    )
    group.add_argument(
        "--share-prefixes",
        action=argparse.BooleanOptionalAction,
        help="share system prompts between sessions of a tenant (default: yes)",
    )
    group.add_argument(
        "--idle-prefill",
        action=argparse.BooleanOptionalAction,
        help="read the known part of the next prompt while idle (default: yes)",
    )
    group.add_argument(
        "--keep-fed-ids",
        action=argparse.BooleanOptionalAction,
        help="a message that reads the same as what was fed keeps the tokens that were fed (default: no)",
    )


def _add_http_options(group: argparse._ArgumentGroup) -> None:
    defaults = Settings()
    group.add_argument("--host", help=f"address to listen on (default: {defaults.host})")
    group.add_argument("--port", type=_port, help=f"0 takes a free one (default: {defaults.port})")
    group.add_argument(
        "--api-key",
        dest="api_keys",
        action="append",
        metavar="KEY",
        help=f"a key that requests must carry; repeatable, or in {API_KEYS_VARIABLE}, comma-separated",
    )
    group.add_argument(
        "--cors-origin",
        dest="cors_origins",
        action="append",
        metavar="ORIGIN",
        help="a browser origin that may call; repeatable (default: every one)",
    )
    group.add_argument(
        "--reasoning-field",
        choices=["reasoning_content", "reasoning", "both"],
        help=f"where thoughts are sent (default: {defaults.reasoning_field})",
    )
    group.add_argument(
        "--max-body",
        dest="max_body_bytes",
        type=_size,
        metavar="SIZE",
        help="longest request body (default: 32MiB)",
    )
    group.add_argument(
        "--stream-interval-seconds",
        dest="stream_interval_s",
        type=_not_negative,
        metavar="S",
        help="how long text may wait for more, where tokens come faster; 0 sends every token on its own "
        f"(default: {defaults.stream_interval_s:g})",
    )
    for name, text in (
        ("keep-alive", "a stream is silent at most that long"),
        ("stall", "give up on a request when nothing moves for so long"),
        ("drain", "how long running requests may finish at the end"),
    ):
        default = getattr(defaults, f"{name.replace('-', '_')}_s")
        group.add_argument(
            f"--{name}-seconds",
            dest=f"{name.replace('-', '_')}_s",
            type=_positive(float),
            metavar="S",
            help=f"{text} (default: {default:g})",
        )
    group.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help="(default: info)")


def _positive(number: Callable[[str], T]) -> Callable[[str], T]:
    def positive(text: str) -> T:
        try:
            value = number(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not value > 0:  # type: ignore[operator]
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return positive


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return value


def _at_least_two(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 2 on")
    return int(text)


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _directory(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {text}")
    return path


if __name__ == "__main__":
    sys.exit(main())
