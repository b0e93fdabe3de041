"""Starts everything in order: cheap checks, the model, then HTTP. Imports MLX: prepare the backend first."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from huggingface_hub.utils.tqdm import disable_progress_bars
from platformdirs import user_cache_path
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from cache.planner import SlotKey
from cache.store import Store
from cache.travel import Traveller, unpack
from model.backend import detect
from model.checkpoint.hub import resolve
from model.checkpoint.load import Progress as OnProgress
from model.errors import ModelError
from model.text.chat import ChatFormat
from model.text.grammar.compiler import GrammarCompiler
from model.text.tokenizer import TextTokenizer
from server.engine.assembly import EngineOptions
from server.engine.thread import Engine
from server.http.gateway import Gateway
from server.http.intake import Keys
from server.lifetime import serve_http
from server.process import SignalWatch, is_loopback, url_of
from server.settings import Settings
from server.telemetry.tracing import Tracing
from server.turn.served import Served, read_defaults

log = logging.getLogger("crossturn.launch")

_LARGE = 1 << 30
"""Smaller weights load before a bar could be seen, and are not worth a line."""


def launch(settings: Settings, listener: socket.socket, watch: SignalWatch) -> None:
    """Load the model and serve it on ``listener`` until a signal arrives at ``watch``.

    Raises:
        ModelError: the model cannot be found or loaded.
    """
    keys = Keys.of(settings)
    settle_bars()
    path = resolve(settings.model, n_memory_bytes=detect().n_memory_bytes)
    tokenizer = TextTokenizer.from_dir(path)
    chat = ChatFormat(tokenizer)
    sampling = read_defaults(path)
    with loading(settings.model) as tell:
        engine = Engine(replace(engine_options(settings, path), on_progress=tell), tokenizer)
        info = engine.start()
    grammars = GrammarCompiler(tokenizer, info.vocab_size)
    served = Served(
        names=names_of(settings, path),
        aliases=settings.served_model_names,
        patterns=settings.model_aliases,
        created=int(time.time()),
        info=info,
        chat=chat,
        tokens=tokenizer,
        grammars=grammars,
        sampling=sampling,
    )
    tracing = Tracing.over_http() if settings.otel else None
    gateway = Gateway(engine, served, settings, tracing=tracing)
    warn_of_strangers(settings, keys)
    try:
        preload(engine, settings.preload)
        serve_http(gateway, keys, listener, watch, lambda: print(ready_line(listener, served), flush=True))
    finally:
        gateway.close()
        if tracing is not None:
            tracing.close()
        grammars.close()
        engine.stop(drain_s=0)


def settle_bars() -> None:
    """Show bars of downloads on terminals only: in a log, each of their steps would be a line."""
    if not sys.stderr.isatty():
        disable_progress_bars()


@contextmanager
def loading(name: str) -> Iterator[OnProgress]:
    """Show how far the weights of ``name`` are loaded; the value is called with bytes done and in all."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(f"loading {name}", total=None, visible=False)
    has_told = False

    def tell(n_done: int, n_total: int) -> None:
        nonlocal has_told
        if n_total < _LARGE:
            return
        if not has_told:
            has_told = True
            log.info("loading %s: %.2f GiB of weights", name, n_total / 2**30)
        bar.update(task, completed=n_done, total=n_total, visible=True)

    with bar:
        yield tell


def warn_of_strangers(settings: Settings, keys: Keys) -> None:
    """Warn if everybody on the network may send requests."""
    if not keys.are_asked_for and not is_loopback(settings.host):
        log.warning(
            "listening on %s without API keys: everybody who reaches it may read and delete conversations; "
            "--api-key or --api-key-file asks for keys",
            settings.host,
        )


def preload(engine: Engine, files: Sequence[Path]) -> None:
    """Load prompt packs, from which every session may then begin.

    Raises:
        ModelError: a file is damaged, from another model, or larger than the memory budget.
    """
    if files:
        metadata, layout = engine.call(lambda store: (store.metadata, store.codec.layout)).result()
        engine.call(lambda store: store.delete(SlotKey.PRELOADED)).result()  # of the last start
    for path in files:
        try:
            with path.open("rb") as file:
                travellers = unpack(file, metadata, layout)
            engine.call(partial(_arrive, travellers)).result()
        except (ValueError, OSError) as error:
            raise ModelError(f"--preload: {path} cannot be used: {error}") from error
        log.info("preloaded %s: %d tokens", path.name, sum(len(t.manifest.ids) for t in travellers))


def _arrive(travellers: Sequence[Traveller], store: Store) -> None:
    store.arrive(travellers, SlotKey.PRELOADED)


def ready_line(listener: socket.socket, served: Served) -> str:
    """The line on stdout that announces the server."""
    info = served.info
    return (
        f"crossturn is ready at {url_of(listener)} with {served.name} on {info.device}: "
        f"context {info.context_length} tokens, memory budget {info.budget_bytes / 1024**3:.1f} GiB"
    )


def names_of(settings: Settings, path: Path) -> tuple[str, ...]:
    """The names by which requests may call the model: those that the operator gave, the last part of its path
    or Hub id, that path or id, and the absolute path of its directory."""
    basename = Path(settings.model).expanduser().name or path.resolve().name
    return tuple(dict.fromkeys((*settings.served_model_names, basename, settings.model, str(path.resolve()))))


def engine_options(settings: Settings, path: Path) -> EngineOptions:
    """The engine's options for the model at ``path``."""
    return EngineOptions(path, settings, hashes_file=user_cache_path("crossturn") / "weights.json")
