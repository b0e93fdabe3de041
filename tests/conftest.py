"""Fixtures that several areas share: a tiny model, and engine loops around it."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from model.backend import prepare

settings.register_profile("untimed", deadline=None)  # machines that run tests are busy with others
settings.load_profile("untimed")

# The matrices of a tiny model are not worth a second thread, which would spin beside other processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# On CUDA MLX would round the factors of float32 products to ten bits (TF32).
os.environ["MLX_ENABLE_TF32"] = "0"
if threading.current_thread() is threading.main_thread():
    # Who runs the tests in the background has them begin with SIGINT ignored, and so all their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
prepare()  # before anything imports MLX

from cache.disk.files import claim  # noqa: E402
from cache.ring import RingLimits  # noqa: E402
from cache.store import Store  # noqa: E402
from model.checkpoint.load import load  # noqa: E402
from model.codec import StateCodec  # noqa: E402
from model.forward import Forward  # noqa: E402
from model.text.tokenizer import TextTokenizer  # noqa: E402
from server.engine.admission import LoopOptions  # noqa: E402
from server.engine.assembly import EngineOptions, disk_tier, metadata  # noqa: E402
from server.engine.drafting import Drafting  # noqa: E402
from server.engine.loop import EngineLoop  # noqa: E402
from server.settings import Settings  # noqa: E402
from tests.fakes import tiny  # noqa: E402

DEMO = Path(__file__).parent.parent / "model" / "demo"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--operations",
        type=int,
        default=90,
        help="random operations for the tests that compare warm replies with cold ones",
    )
    parser.addoption(
        "--requests", type=int, default=300, help="hostile requests for the test that sends them"
    )
    parser.addoption("--small-disk", help="a folder on a file system of a few MiB, to be filled")
    parser.addoption("--kills", type=int, default=4, help="kills for the test of disk writes")
    parser.addoption("--clients", type=int, default=30, help="clients for the tests of many connections")


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """A command that a test runs in this process sets the log up; the next test has a stderr of its own."""
    loggers = [logging.getLogger(name) for name in ("crossturn", "uvicorn")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture(scope="session")
def tiny_forward(tmp_path_factory: pytest.TempPathFactory) -> Forward:
    """A random model of four layers in float32, with a vocabulary of 256 ids."""
    return load(tiny.write_text(tmp_path_factory.mktemp("tiny")), dtype="float32")


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    """The demo model's tokenizer: its ids include those of the tiny model."""
    return TextTokenizer.from_dir(DEMO)


@pytest.fixture(scope="session")
def demo_forward() -> Forward:
    """The model that ships with the package, in float32."""
    return load(DEMO, dtype="float32")


@pytest.fixture
def make_loop(tiny_forward: Forward, tokenizer: TextTokenizer) -> Callable[..., EngineLoop]:
    """Makes fresh loops that share nothing but the weights: ``make_loop(budget_bytes=..., ...)``."""

    def make(
        *,
        budget_bytes: int = 2**30,
        ring: RingLimits | None = None,
        options: LoopOptions | None = None,
        shares_prefixes: bool = True,
        stop_ids: frozenset[int] = frozenset({2}),
        forward: Forward = tiny_forward,
        cache_dir: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        drafting: Drafting | None = None,
    ) -> EngineLoop:
        known = metadata(forward, tokenizer, forward.config.max_context)
        disk = EngineOptions(DEMO, Settings(cache_dir=cache_dir))
        store = Store(
            known,
            budget_bytes=budget_bytes,
            ring_limits=ring or RingLimits(),
            share_prefixes=shares_prefixes,
            clock=_Clock(),
            new_state=forward.new_state,
            disk=None if cache_dir is None else disk_tier(disk, known, forward, claim(cache_dir)),
            codec=StateCodec(forward.new_state),
        )
        return EngineLoop(
            forward,
            tokenizer,
            store,
            stop_ids=stop_ids,
            options=options or LoopOptions(prefill_tokens=128, shared_prefill_tokens=64, checks_store=True),
            clock=clock,
            drafting=drafting,
        )

    return make


class _Clock:
    """A second passes whenever it is read."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 1.0
        return self._now
