"""What the served model is called, and what its generation config says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model.errors import CheckpointError
from model.sampling import SamplingParams
from server.engine.admission import LoopOptions
from server.launch import engine_options, names_of
from server.settings import EngineSettings, Settings
from server.turn.served import read_defaults


def test_f10_a_model_is_called_by_alias_basename_name_and_path(tmp_path: Path) -> None:
    settings = Settings(model=str(tmp_path), served_model_names=("a", "b"))
    assert names_of(settings, tmp_path) == ("a", "b", tmp_path.name, str(tmp_path))


def test_f10_a_hub_model_is_called_by_its_repository_not_by_its_cache_folder(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "0a1b2c"
    assert names_of(Settings(model="Qwen/Qwen3.5-0.8B"), snapshot)[:2] == (
        "Qwen3.5-0.8B",
        "Qwen/Qwen3.5-0.8B",
    )


def test_e3_sessions_of_a_tenant_share_system_prompts_unless_told_otherwise(tmp_path: Path) -> None:
    shares = [
        engine_options(settings, tmp_path).settings.share_prefixes
        for settings in (
            Settings(),
            Settings(api_keys=("k",)),
            Settings(share_prefixes=False),
        )
    ]
    assert shares == [True, True, False]


def test_the_loop_has_every_decision_of_the_operators_by_its_own_name(tmp_path: Path) -> None:
    settings = Settings(stream_interval_seconds=0.5, max_running=3, keep_fed_ids=True, queue_seconds=7)
    told = LoopOptions.of(engine_options(settings, tmp_path).settings)
    for name in EngineSettings.model_fields:
        assert getattr(told, name) == getattr(settings, name)


def test_a_model_in_the_working_directory_has_its_directorys_name(tmp_path: Path) -> None:
    assert names_of(Settings(model="."), tmp_path)[0] == tmp_path.name


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, SamplingParams()),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, SamplingParams(0.6, 0.95, 20)),
        ({"do_sample": False, "temperature": 0.6}, SamplingParams(0.0)),
        ({"top_k": None, "repetition_penalty": 1.1}, SamplingParams(repetition_penalty=1.1)),
    ],
)
def test_defaults_are_read_from_the_generation_config(
    tmp_path: Path, config: dict[str, object], expected: SamplingParams
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert read_defaults(tmp_path) == expected


def test_a_checkpoint_without_a_generation_config_changes_nothing(tmp_path: Path) -> None:
    assert read_defaults(tmp_path) == SamplingParams()


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_generation_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        read_defaults(tmp_path)
