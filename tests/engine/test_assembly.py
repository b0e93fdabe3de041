"""What the engine loads: refused before the weights are read, where it can be told before."""

from __future__ import annotations

import logging
import re
import tomllib
from pathlib import Path

import pytest

import model.devices.metal.delta_rule as delta_rule
import server.engine.assembly as assembly
from model.errors import ModelError
from model.text.tokenizer import TextTokenizer
from server.engine.assembly import EngineOptions, assemble
from server.settings import Settings
from tests.fakes import tiny

ROOT = Path(__file__).parent.parent.parent


def test_l6_a_context_above_the_models_limit_is_refused_by_its_number_before_anything_is_loaded(
    tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny.write_text(tmp_path)
    monkeypatch.setattr(assembly, "load", None)
    with pytest.raises(ModelError, match="a context of 4097 tokens is above the model's limit of 4096"):
        assemble(EngineOptions(path, Settings(context_length=4097)), tokenizer)


@pytest.mark.parametrize("asked", [4096, 100, None])
def test_l6_a_context_within_the_limit_is_taken_as_it_is(
    asked: int | None, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    _, info = assemble(EngineOptions(tiny.write_text(tmp_path), Settings(context_length=asked)), tokenizer)
    assert info.context_length == (asked or 4096)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_m8_the_engine_computes_in_the_dtype_it_is_told(
    dtype: str, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    loop, _ = assemble(EngineOptions(tiny.write_text(tmp_path), Settings(dtype=dtype)), tokenizer)
    assert loop.store.metadata.kv_dtype == dtype


def test_m7_the_engine_remembers_the_weights_hash(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    file = tmp_path / "hashes.json"
    assemble(EngineOptions(model_path=tiny.write_text(tmp_path), hashes_file=file), tokenizer)
    assert file.read_text().count(":") == 1


def test_m7_what_is_called_from_inside_mlx_lm_is_there_at_start_and_bounded_above() -> None:
    assert callable(delta_rule.gated_delta_kernel)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bound,) = (entry for entry in project["dependencies"] if entry.startswith("mlx-lm"))
    assert re.fullmatch(r"mlx-lm>=0\.32\.\d+,<0\.33", bound)


def test_l7_every_logger_is_one_that_the_log_level_reaches() -> None:
    found = [
        (file.name, name)
        for room in ("server", "model", "cache")
        for file in (ROOT / room).rglob("*.py")
        for name in re.findall(r"getLogger\((.*?)\)", file.read_text())
    ]
    assert len(found) > 5
    ours = re.compile(r'"crossturn(\.\w+)*"')
    assert [entry for entry in found if not ours.fullmatch(entry[1]) and entry[0] != "log.py"] == []
    assert logging.getLogger("crossturn.model").parent is not None
