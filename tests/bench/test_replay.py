"""The replay runs over made-up sessions, and its figures hang together."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCH / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "sessions.jsonl"
    path.write_text(run("sessions.py", "--sessions", "6", "--seed", "3"))
    return path


def test_made_up_sessions_are_the_same_for_the_same_seed(trace: Path) -> None:
    assert run("sessions.py", "--sessions", "6", "--seed", "3") == trace.read_text()


def test_made_up_sessions_hardly_ever_leave_their_last_prompt(trace: Path) -> None:
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    pairs = [(a, b) for a, b in pairwise(rows) if a["session"] == b["session"]]
    grown = [b["hash_ids"][: len(a["hash_ids"])] == a["hash_ids"] for a, b in pairs]
    assert len(pairs) > 50
    assert sum(grown) >= 0.9 * len(grown)


@pytest.mark.slow
def test_with_room_for_all_almost_nothing_is_read_twice_and_with_less_room_more(trace: Path) -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in run(
            "replay.py", str(trace), "--at-once", "6", "--sessions-worth", "0.5", "30"
        ).splitlines()
        if line.startswith("| ")
    ][1:]
    ratios = {(budget.split()[0], policy): float(ratio) for _, budget, policy, ratio, *_ in rows}
    least = {budget.split()[0]: float(bound) for _, budget, _, _, bound, *_ in rows}
    evicted = {(budget.split()[0], policy): int(n) for _, budget, policy, *_, n, _, _ in rows}
    assert all(ratio >= least[budget] for (budget, _), ratio in ratios.items())
    assert 1.0 <= ratios["30", "crossturn"] <= 1.1
    assert evicted["30", "crossturn"] == 0
    assert ratios["0.5", "crossturn"] > ratios["30", "crossturn"]
    assert all(ratio >= 1.0 for ratio in ratios.values())
