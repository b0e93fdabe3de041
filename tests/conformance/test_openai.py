"""openai-python's own tests of the endpoints that this server has, run against it.

Its source distribution holds them; ``scripts/conformance`` fetches it and sets the variable below.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.fakes.fake_engine import FakeEngine, fake_served, says
from tests.fakes.live_server import live

SOURCES = os.environ.get("CROSSTURN_OPENAI_SOURCES")
MODELS = ("gpt-6-astra", "gpt-3.5-turbo-instruct")
"""The names that those tests ask for."""

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(SOURCES is None, reason="CROSSTURN_OPENAI_SOURCES names no folder"),
]


@pytest.mark.parametrize(
    ("path", "chosen", "n_tests"),
    [
        ("tests/api_resources/chat/test_completions.py", "create", 24),
        ("tests/api_resources/test_completions.py", "create", 24),
        ("tests/api_resources/test_models.py", "retrieve or list", 12),
    ],
)
def test_the_packages_own_tests_pass(path: str, chosen: str, n_tests: int) -> None:
    # Those with all parameters at once ask for audio, stored replies and web search: refused on purpose.
    chosen = f"({chosen}) and not all_params"
    command = [sys.executable, "-m", "pytest", path, "-k", chosen, "-q", "-p", "no:cacheprovider"]
    options = ["-o", "addopts=", "-W", "ignore", "-o", "asyncio_default_fixture_loop_scope=session"]
    with live(FakeEngine(says("Hel", "lo")), fake_served(*MODELS)) as server:
        environment = {**os.environ, "TEST_API_BASE_URL": server.url}
        done = subprocess.run(
            [*command, *options], cwd=SOURCES, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout
    n_passed = int(done.stdout.rstrip().splitlines()[-1].split(" passed")[0].split()[-1])
    assert n_passed >= n_tests
