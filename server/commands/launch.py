"""``crossturn launch``: start a coding agent with a running server, or with one of its own."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from model.errors import CrossturnError
from server.commands.agents import AGENTS, Agent, Place, Setup
from server.commands.api import DEFAULT_URL, Api, ApiError
from server.commands.command import Command

PRINTED = Path("/tmp/crossturn-launch")
"""The folder that ``--print`` shows, for an agent that is not started."""
READY = "crossturn is ready at "
LINGER_S = 10
"""How long our own server may take to end."""


class LaunchError(CrossturnError):
    """The agent cannot be started; the message is one line."""


def add_options(parser: ArgumentParser) -> None:
    """The agent and the server."""
    parser.usage = "crossturn launch AGENT [options] [-- ARGUMENTS]"
    parser.add_argument(
        "rest", nargs=REMAINDER, metavar="AGENT", help=f"{', '.join(AGENTS)}; behind -- its own arguments"
    )
    _add_flags(parser)


def _add_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        default=os.environ.get("CROSSTURN_URL"),
        help=f"the server (default: $CROSSTURN_URL, or {DEFAULT_URL} if one answers there, or a new one)",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=os.environ.get("CROSSTURN_API_KEY"),
        help="its key, if it asks for one (default: $CROSSTURN_API_KEY)",
    )
    parser.add_argument(
        "--model", help="the model of a new server; its other settings come from the environment"
    )
    parser.add_argument("--print", action="store_true", help="show the configuration, and start nothing")


def run(chosen: Namespace) -> int:
    """Start the agent and wait for its end; its exit status.

    Raises:
        LaunchError: the agent is not installed, or the server cannot be used.
    """
    arguments = _read_rest(chosen)
    agent = AGENTS[chosen.agent]
    program = shutil.which(agent.program)
    if program is None and not chosen.print:
        raise LaunchError(f"{agent.program} is not installed; install it with: {agent.install}")
    api = _found(chosen)
    if chosen.print:
        place = _place(api, chosen.api_key, PRINTED) if api else _example(chosen)
        if not api:
            print("# No server answers yet. A new one tells its own address, model and context length.")
        print(shown(agent, agent.setup(place), arguments, PRINTED))
        return 0
    assert program is not None
    with _running(api, chosen) as server, tempfile.TemporaryDirectory(prefix="crossturn-launch-") as folder:
        setup = agent.setup(_place(server, chosen.api_key, Path(folder)))
        return _run(server, [program, *setup.arguments, *arguments], setup, Path(folder))


def _read_rest(chosen: Namespace) -> list[str]:
    """Read the agent's name, and our options after it, into ``chosen``; the rest is the agent's."""
    at = chosen.rest.index("--") if "--" in chosen.rest else len(chosen.rest)
    parser = ArgumentParser(prog="crossturn launch", allow_abbrev=False)
    parser.add_argument("agent", choices=list(AGENTS))
    _add_flags(parser)
    parser.parse_args(chosen.rest[:at], chosen)
    return list(chosen.rest[at + 1 :])


def shown(agent: Agent, setup: Setup, arguments: list[str], folder: Path) -> str:
    """The configuration as a shell would set it."""
    lines = [
        f"# {folder / name}, while the agent runs:\n{text.rstrip()}" for name, text in setup.files.items()
    ]
    lines += [
        f"export {name}={shlex.quote(value)}" if value else f"unset {name}"
        for name, value in setup.environment.items()
    ]
    lines.append(shlex.join([agent.program, *setup.arguments, *arguments]))
    return "\n".join(lines)


def _run(api: Api, command: list[str], setup: Setup, folder: Path) -> int:
    for name, text in setup.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    before = api.get("/v1/stats")
    # Ctrl-C is for the agent; its exit status tells how it ended.
    taken = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = subprocess.Popen(command, env=_environment(setup), preexec_fn=_give_back_interrupts).wait()
    finally:
        signal.signal(signal.SIGINT, taken)
    with suppress(ApiError):  # the server may have been stopped meanwhile
        print(reused(before, api.get("/v1/stats")), file=sys.stderr)
    return status if status >= 0 else 128 - status


def _give_back_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _environment(setup: Setup) -> dict[str, str]:
    hidden = {name for name, value in setup.environment.items() if not value}
    return {name: value for name, value in {**os.environ, **setup.environment}.items() if name not in hidden}


def reused(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What the server has reused between two statistics, in one line."""
    n_prompt, n_reused, n_written = (
        after[name] - before[name] for name in ("prompt_tokens", "reused_tokens", "generated_tokens")
    )
    if not n_prompt:
        return "crossturn: the agent has asked for nothing."
    share = f"{100 * n_reused / n_prompt:.1f}"
    return (
        f"crossturn: the prompts had {n_prompt:,} tokens, of which {n_reused:,} ({share}%) were reused and "
        f"{n_prompt - n_reused:,} read; {n_written:,} were written."
    )


def session_of(folder: Path) -> str:
    """A session name for agents that do not send one: it depends on the folder, so that they continue
    there."""
    return f"launch-{hashlib.blake2b(bytes(folder), digest_size=8).hexdigest()}"


def _place(api: Api, key: str | None, folder: Path) -> Place:
    model = api.get("/v1/models")["data"][0]
    return Place(
        url=f"{api.url}/v1",
        key=key,
        model=model["id"],
        context_length=model["context_length"],
        session=session_of(Path.cwd()),
        folder=folder,
    )


def _example(chosen: Namespace) -> Place:
    model = Path(chosen.model or "demo").name
    return Place(
        url=f"{DEFAULT_URL}/v1",
        key=chosen.api_key,
        model=model,
        context_length=32_768,
        session="launch-1",
        folder=PRINTED,
    )


def _found(chosen: Namespace) -> Api | None:
    """The server that was named, or one that answers at the default URL.

    Raises:
        ApiError: the named server does not answer, or refuses.
    """
    if chosen.url is None and chosen.model is not None:
        return None  # a model without a server asks for a new server with that model
    api = Api(chosen.url or DEFAULT_URL, chosen.api_key)
    try:
        api.get("/v1/models")
    except ApiError as error:
        if chosen.url is not None or error.status:
            raise
        return None
    return api


@contextmanager
def _running(api: Api | None, chosen: Namespace) -> Iterator[Api]:
    """``api``, or a new server that ends with the context."""
    if api is not None:
        yield api
        return
    with _own_server(chosen.model) as url:
        yield Api(url, chosen.api_key)


@contextmanager
def _own_server(model: str | None) -> Iterator[str]:
    options = ["--port", "0", "--log-level", "warning", *(["--model", model] if model else [])]
    command = [sys.executable, "-m", "server.cli", "serve", *options]
    # In a process group of its own, because Ctrl-C is for the agent.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if line.startswith(READY)), None)
            if line is None:
                raise LaunchError(f"the server has ended with status {process.wait()}; see its message above")
            print(line.rstrip(), file=sys.stderr)
            yield line.removeprefix(READY).split()[0]
        finally:
            process.terminate()
            try:
                process.wait(LINGER_S)
            except subprocess.TimeoutExpired:
                process.kill()


LAUNCH = Command("launch", "start a coding agent that uses this server", add_options, run)
