"""Many bodies that no client would send: none makes the server fail, and each refusal names its field."""

from __future__ import annotations

import pytest

from tests.fakes.fake_engine import FakeEngine, fake_served
from tests.fakes.live_server import live
from tests.responses.test_refusals import fuzz

pytestmark = pytest.mark.conformance


def test_two_thousand_bodies_of_responses() -> None:
    with live(FakeEngine(), fake_served("demo", context_length=1 << 20)) as server:
        fuzz(server, 2000)
