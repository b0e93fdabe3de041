"""The settings: one name for each option, in flags, the environment and a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.checkpoint.hub import resolve
from server.cli import main, parser
from server.commands.options import settings_of
from server.settings import SECTIONS, Settings


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEYS", "API_KEY", "CONFIG", "PORT"):
        monkeypatch.delenv(f"CROSSTURN_{name}", raising=False)


def read(*options: str) -> Settings:
    """The settings of a command line."""
    return settings_of(parser().parse_args(["serve", *options]))


def complaint(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What is said of a command line that is refused with status 2."""
    with pytest.raises(SystemExit) as exit_info:
        main(["serve", *options])
    assert exit_info.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_no_options_are_the_settings_defaults() -> None:
    assert read() == Settings()
    assert read().model_fields_set == set()


def test_every_option_is_in_one_section() -> None:
    names = [name for section in SECTIONS for name in section.model_fields]
    assert sorted(names) == sorted(Settings.model_fields)
    assert all(field.description for field in Settings.model_fields.values())


def test_flags_become_settings() -> None:
    options = (
        "--api-key a --api-key b --memory-budget 2GiB --no-thinking --served-model-name x "
        "--stream-interval-seconds 0 --stall-seconds 9 --max-running 3 --cors-origin http://a:1"
    )
    assert read(*options.split()) == Settings(
        api_keys=("a", "b"),
        memory_budget=2 * 1024**3,
        thinking=False,
        served_model_names=("x",),
        stream_interval_seconds=0.0,
        stall_seconds=9.0,
        max_running=3,
        cors_origins=("http://a:1",),
    )


def test_flags_beat_the_environment_which_beats_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "crossturn.toml"
    file.write_text(
        'thinking = false\n[http]\nport = 1\nmax-body = "1MiB"\napi-keys = ["f"]\nhost = "0.0.0.0"\n'
    )
    monkeypatch.setenv("CROSSTURN_PORT", "2")
    monkeypatch.setenv("CROSSTURN_API_KEYS", "b, c")
    settings = read("--config", str(file), "--port", "3")
    assert settings == Settings(port=3, api_keys=("b", "c"), host="0.0.0.0", max_body=1024**2, thinking=False)
    monkeypatch.setenv("CROSSTURN_CONFIG", str(file))
    assert read().port == 2


def test_variables_without_our_prefix_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "API_KEYS", "PORT", "HOST", "MODEL"):
        monkeypatch.setenv(name, "7")
    assert read() == Settings()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("colour = 1", "'colour'"),
        ("[http]\nmodel = 'demo'", "'model'"),
        ("[cache]\nring-bytes = 0", "--ring-bytes"),
        ("port = ", "is not TOML"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(
    content: str | None, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.toml"
    if content is not None:
        file.write_text(content)
    assert named in complaint(capsys, "--config", str(file))


def test_x3_an_empty_key_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--api-keys" in complaint(capsys, "--api-key", "")
    for empty in (", ,", ""):
        monkeypatch.setenv("CROSSTURN_API_KEYS", empty)
        assert "--api-keys" in complaint(capsys)


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1", "1e9"])
def test_x9_a_drain_without_end_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--drain-seconds" in complaint(capsys, "--drain-seconds", seconds)


@pytest.mark.parametrize("option", ["cache-dir", "adapter-path"])
def test_l7_a_path_may_begin_at_home(option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x").mkdir()
    settings = read(f"--{option}=~/x")
    assert getattr(settings, option.replace("-", "_")) == tmp_path / "x"


@pytest.mark.parametrize("option", ["--cache-dir", "--adapter-path"])
def test_x8_an_empty_path_is_not_the_current_directory(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert option in complaint(capsys, option, "")


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("1", 1), ("8GiB", 8 * 1024**3), ("512MB", 512 * 1000**2), ("1.5GiB", 3 * 1024**3 // 2)],
)
def test_sizes_have_units_of_1024_or_of_1000(text: str, n_bytes: int) -> None:
    assert read("--max-body", text).max_body == n_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "8 apples", "GiB", "nan"])
def test_what_is_no_size_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--max-body" in complaint(capsys, "--max-body", text)


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    told = capsys.readouterr().out
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in told
    assert "--memory-budget SIZE" in told
    assert "ByteSize" not in told


@pytest.mark.parametrize("home", ["~/x", "~nobody-here/x"])
def test_l7_a_tilde_is_the_home_folder_in_every_path_option(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x").mkdir()
    known = home.startswith("~/")
    assert read(f"--cache-dir={home}").cache_dir == (tmp_path / "x" if known else Path(home))
    paths = [name for name, field in Settings.model_fields.items() if "Path" in str(field.annotation)]
    assert sorted(paths) == ["adapter_path", "api_key_file", "cache_dir", "mtp_path", "preload"]
    if known:
        (tmp_path / "x" / "file").touch()
        assert read("--api-key-file=~/x/file").api_key_file == tmp_path / "x" / "file"
        assert read("--preload=~/x/file").preload == (tmp_path / "x" / "file",)
        assert read("--adapter-path=~/x").adapter_path == tmp_path / "x"
        (tmp_path / "x" / "config.json").write_text("{}")
        assert resolve(read("--model=~/x").model) == tmp_path / "x"


def test_m8_a_dtype_is_one_of_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert read("--dtype", "float16").dtype == "float16"
    assert "--dtype: input should be 'float16', 'bfloat16'" in complaint(capsys, "--dtype", "float8")
