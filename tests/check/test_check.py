"""``crossturn check`` agrees with what is right, and gives what is wrong its name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import model.devices.cpu.attention as cpu_attention
import model.devices.cpu.gdn as cpu_gdn
import model.devices.cpu.network as cpu_network
import model.devices.metal.delta_rule as metal_rule
import model.devices.metal.device as metal_device
import model.state as model_state
import server.check.run as running
import server.check.speed as speed
from model.backend import detect, without_kernels
from model.checkpoint.load import load
from model.forward import Forward
from server.check.kernels import check_kernels
from server.check.passes import check_passes
from server.check.result import Section, differing, report, table, verdict
from server.check.speed import Speed, best
from server.check.walk import _gap, check_walk
from server.cli import main
from tests.conftest import DEMO
from tests.fakes import tiny
from tests.fakes.driver import plain_prompt
from tests.fakes.metal import metal

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("shape", [tiny.DENSE, tiny.MOE], ids=["dense", "experts"])
def test_every_kernel_of_this_device_agrees_with_plain_operations(
    shape: tiny.TinyShape, tmp_path: Path
) -> None:
    section = check_kernels(tiny.write_text(tmp_path, shape), detect(), None)
    assert section.differing == []
    assert len(section.rows) == 20


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "nvfp4"])
def test_kernels_over_packed_weights_agree_as_well(mode: str, tmp_path: Path) -> None:
    packed, _ = tiny.write_quantised(tmp_path, tiny.TinyShape(hidden=128, intermediate=128), mode=mode)
    assert check_kernels(packed, detect(), None).differing == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kernels_in_16_bits_may_be_as_far_off_as_their_digits(dtype: str, tmp_path: Path) -> None:
    assert check_kernels(tiny.write_text(tmp_path), detect(), dtype).differing == []


def scaled(function: Callable[..., Any], which: int | None = None) -> Callable[..., Any]:
    """``function`` whose result, or one of its results, is two hundredths too large."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        if which is None:
            return result * np.float32(1.02)
        results = list(result)
        results[which] = results[which] * np.float32(1.02)
        return tuple(results)

    return wrong


def plant_in_norms(patch: Patch) -> None:
    patch.setattr(cpu_network.RmsNorm, "__call__", scaled(cpu_network.RmsNorm.__call__))


def plant_in_feed_forward(patch: Patch) -> None:
    patch.setattr(cpu_network, "silu", scaled(cpu_network.silu))


def plant_in_prompt_state(patch: Patch) -> None:
    patch.setattr(cpu_gdn, "mix", scaled(cpu_gdn.mix, 1))


def plant_in_capture(patch: Patch) -> None:
    def wrong(*arguments: Any) -> Any:
        mixed, last, captured = right(*arguments)
        return mixed, last, [c * np.float32(1.02) for c in captured]

    right = cpu_gdn.mix
    patch.setattr(cpu_gdn, "mix", wrong)


def plant_in_gdn_step(patch: Patch) -> None:
    patch.setattr(cpu_gdn, "step", scaled(cpu_gdn.step, 2))


def plant_in_prompt_attention(patch: Patch) -> None:
    patch.setattr(cpu_attention, "multiply", scaled(cpu_attention.multiply))


def plant_nan_in_attention(patch: Patch) -> None:
    def wrong(*arguments: Any) -> Any:
        result = right(*arguments)
        result[0, 0] = np.nan
        return result

    right = cpu_attention.multiply
    patch.setattr(cpu_attention, "multiply", wrong)


@pytest.mark.parametrize(
    ("plant", "names"),
    [
        (plant_in_norms, {"norms, embedding and head, step"}),
        (plant_in_feed_forward, {"feed-forward, step", "feed-forward, batch", "feed-forward, a few tokens"}),
        (
            plant_in_prompt_state,
            {"GDN layer, prompt", "GDN layer, a few tokens", "GDN layer, step", "GDN layer, batch"},
        ),
        (plant_in_capture, {"GDN layer, prompt"}),
        (plant_in_gdn_step, {"GDN layer, step", "GDN layer, batch"}),
        (plant_in_prompt_attention, {"attention, prompt"}),
        (plant_nan_in_attention, {"attention, prompt"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_planted_fault_of_a_kernel_is_called_by_its_name(
    plant: Callable[[Patch], None], names: set[str], tmp_path: Path, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    found = check_kernels(tiny.write_text(tmp_path), detect(), None).differing
    assert set(found) >= names
    parts = {name.rpartition(", ")[0] for name in names}
    assert {name.rpartition(", ")[0] for name in found} == parts


def test_the_whole_model_agrees_with_itself(tiny_forward: Forward) -> None:
    section = check_passes(tiny_forward, detect())
    assert section.differing == []
    assert len(section.rows) == 6


def test_a_state_that_is_restored_wrongly_is_named(tiny_forward: Forward, monkeypatch: Patch) -> None:
    right = model_state.State.restore

    def wrong(self: model_state.State, checkpoint: model_state.Checkpoint) -> None:
        right(self, checkpoint)
        self.recurrent = [
            model_state.Recurrent(layer.window, layer.matrix * 1.05) for layer in self.recurrent
        ]

    monkeypatch.setattr(model_state.State, "restore", wrong)
    assert check_passes(tiny_forward, detect()).differing == ["the same state, gone back to"]


def test_a_warm_conversation_agrees_with_a_cold_one(demo_forward: Forward, tokenizer: Any) -> None:
    section = check_walk(demo_forward, detect(), tokenizer)
    assert section.differing == []
    assert sum("ReplayFromCheckpoint" in row.part or "ExactAppend" in row.part for row in section.rows) >= 7


def test_a_conversation_that_is_continued_from_a_wrong_state_is_named(
    demo_forward: Forward, tokenizer: Any, monkeypatch: Patch
) -> None:
    right = model_state.State.fork

    def wrong(self: model_state.State, checkpoint: model_state.Checkpoint) -> model_state.State:
        forked = right(self, checkpoint)
        forked.recurrent = [
            model_state.Recurrent(layer.window, mx.zeros_like(layer.matrix)) for layer in forked.recurrent
        ]
        return forked

    monkeypatch.setattr(model_state.State, "fork", wrong)
    monkeypatch.setattr(model_state.State, "restore", lambda self, c: vars(self).update(vars(wrong(self, c))))
    assert len(check_walk(demo_forward, detect(), tokenizer).differing) >= 3


def test_without_kernels_the_model_computes_the_same(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    ids = np.arange(100, dtype=np.uint32)
    forwards = [load(path), load(path, device=without_kernels(detect()))]
    logits = [np.array(forward.prefill(forward.new_state(), ids).logits) for forward in forwards]
    assert np.allclose(*logits, atol=1e-4)


@pytest.fixture
def quick(monkeypatch: Patch) -> None:
    """Speeds are measured on next to nothing."""
    monkeypatch.setattr(speed, "LENGTHS", (16,))
    monkeypatch.setattr(speed, "_N_STEPS", 2)


class Passes:
    """Passes that take so many seconds each, in their order, on a clock of their own."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = iter(seconds)
        self.now = 0.0

    def __call__(self) -> Speed:
        seconds = next(self._seconds)
        self.now += seconds
        return Speed(512 / seconds, 24 / seconds)


@pytest.mark.parametrize(
    ("seconds", "fastest", "n_passes"),
    [
        ((0.25, 1.0, 2.0, 1.5), 1.0, 4),  # the first is not counted, were it the fastest
        ((11.0, 1.0, 0.5, 2.0), 0.5, 4),
        ((5.0, 7.0, 0.1), 7.0, 2),  # long ones are not repeated
        ((13.0, 1.0), 13.0, 1),  # and of those that are very long the first counts
    ],
)
def test_a_speed_is_the_best_of_several_passes_after_one_that_compiles(
    seconds: tuple[float, ...], fastest: float, n_passes: int
) -> None:
    passes = Passes(*seconds)
    assert best(passes, lambda: passes.now) == Speed(512 / fastest, 24 / fastest)
    assert passes.now == sum(seconds[:n_passes])


def test_every_length_is_measured_by_equal_passes_of_which_the_first_is_not_counted(
    tiny_forward: Forward, monkeypatch: Patch
) -> None:
    lengths = []
    right = Forward.prefill

    def noted(self: Forward, state: Any, ids: Any, **options: Any) -> Any:
        lengths.append(len(ids))
        return right(self, state, ids, **options)

    monkeypatch.setattr(speed, "LENGTHS", (16, 48))
    monkeypatch.setattr(speed, "_N_STEPS", 2)
    monkeypatch.setattr(Forward, "prefill", noted)
    monkeypatch.setattr(Forward, "warm_up", lambda _: None)
    assert list(speed.time_ours(tiny_forward)) == [16, 48]
    assert lengths == [16] * 4 + [48] * 4


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_command_agrees_and_writes_a_report_without_paths_and_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.md"
    assert main(["check", "--report", str(file)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^verdict: all 35 comparisons agree \(\d+ s\)$", out, re.MULTILINE)
    text = file.read_text()
    assert "**verdict: all 35 comparisons agree**" in text
    assert "| prefill of 16 tokens |" in text
    for secret in (str(Path.home()), str(DEMO), os.uname().nodename, str(tmp_path), "demo"):
        assert secret not in text


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_command_fails_by_name_and_says_what_to_do_instead(
    capsys: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    plant_in_feed_forward(monkeypatch)
    assert main(["check"]) == 1
    out = capsys.readouterr().out
    assert "DIFFERS" in out
    assert "crossturn serve --no-kernels" in out
    last = out.splitlines()[-1]
    assert re.match(r"verdict: \d+ of 35 comparisons differ: feed-forward, ", last)


def test_a_report_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    monkeypatch.setattr(running, "check", lambda *_: [])
    assert main(["check", "--report", str(tmp_path / "no" / "folder")]) == 1
    assert capsys.readouterr().err.startswith("crossturn: the report cannot be written")


def test_what_is_no_number_differs_and_every_outcome_shows() -> None:
    section = Section("title")
    section.judge("good", 1e-7, 1e-4)
    section.judge("bad", float("nan"), 1e-4)
    section.judge("worse", float("inf"), 1e-4)
    section.tell("known", "7")
    section.notes.append("a note")
    assert differing([section]) == ["bad", "worse"]
    assert verdict([section]) == "verdict: 2 of 3 comparisons differ: bad; worse"
    assert table(section).splitlines()[1:] == [
        "  good   1.0e-07  (at most 1.0e-04)  ok",
        "  bad    nan  (at most 1.0e-04)  DIFFERS",
        "  worse  inf  (at most 1.0e-04)  DIFFERS",
        "  known  7",
        "  a note",
    ]
    assert "| bad | nan | 1.0e-04 | **differs** |" in report([section])


def test_a_reply_that_parts_where_two_tokens_are_as_likely_is_no_difference(demo_forward: Forward) -> None:
    prompt = plain_prompt([5, 6, 7])
    logits = np.array(demo_forward.prefill(demo_forward.new_state(), prompt.ids).logits)
    best, second = (int(i) for i in np.argsort(logits)[[-1, -2]])
    gap = _gap(demo_forward, prompt, 0, [second], [best])
    assert gap == pytest.approx(float(logits[best] - logits[second]) / float(logits.std()))
    assert _gap(demo_forward, prompt, 2, [1, 2], [1, 2]) == 0.0
    assert _gap(demo_forward, prompt, 1, [1], [1, 2]) == float("inf")


@pytest.mark.parametrize("shape", [tiny.DENSE, tiny.MOE], ids=["dense", "experts"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_metals_code_agrees_with_plain_operations(shape: tiny.TinyShape, dtype: str, tmp_path: Path) -> None:
    with metal() as device:
        assert check_kernels(tiny.write_text(tmp_path, shape), device, dtype).differing == []


def plant_in_metals_kernel(patch: Patch) -> None:
    patch.setattr(metal_rule, "gated_delta_kernel", scaled(metal_rule.gated_delta_kernel, 1))


def plant_in_metals_attention(patch: Patch) -> None:
    patch.setattr(metal_device, "attend", scaled(metal_device.attend))


@pytest.mark.parametrize(
    ("plant", "names"),
    [
        (plant_in_metals_kernel, {"GDN layer, prompt", "GDN layer, step", "GDN layer, batch"}),
        (plant_in_metals_attention, {"attention, prompt", "attention, step", "attention, batch"}),
    ],
)
def test_a_planted_fault_in_metals_code_is_called_by_its_name(
    plant: Callable[[Patch], None], names: set[str], tmp_path: Path, monkeypatch: Patch
) -> None:
    with metal() as device:
        plant(monkeypatch)
        found = check_kernels(tiny.write_text(tmp_path), device, "float32").differing
    assert set(found) >= names
    assert {name.rpartition(", ")[0] for name in found} == {name.rpartition(", ")[0] for name in names}
