"""What is released: the formula fits the lock, and the project's bounds fit both."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
LOCK, FORMULA = (ROOT / "packaging" / name for name in ("macos-arm64.txt", "crossturn.rb"))


@pytest.fixture(scope="module")
def formula() -> ModuleType:
    spec = util.spec_from_file_location("crossturn_formula", ROOT / "packaging" / "formula.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def locked() -> dict[str, str]:
    return dict(line.split("==") for line in LOCK.read_text().split())


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_is_within_the_projects_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(locked()[normal(wanted.name)]), text


def test_the_lock_has_metal_and_nothing_of_other_systems() -> None:
    assert "mlx-metal" in locked()
    assert not {"mlx-cpu", "mlx-cuda-13", "scipy-openblas32"} & locked().keys()


def test_the_formula_has_a_wheel_with_a_hash_for_every_line_of_the_lock() -> None:
    text = FORMULA.read_text()
    found = re.findall(
        r'resource "(.+)" do\n    url "(.+)", using: :nounzip\n    sha256 "([0-9a-f]{64})"', text
    )
    assert {normal(name) for name, _, _ in found} == locked().keys()
    for name, url, _ in found:
        assert url.startswith("https://files.pythonhosted.org/packages/"), name
        stem, version, *_ = url.rpartition("/")[2].removesuffix(".whl").split("-")
        assert (normal(stem), version) == (normal(name), locked()[normal(name)])


def test_a_formula_is_written_from_wheels(formula: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "crossturn-9.8.7-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    part = formula.Wheel("mlx", "https://files.pythonhosted.org/mlx.whl", "0" * 64)
    text = formula.formula(wheel, [part], description="words")
    assert "/crossturn-9.8.7-py3-none-any.whl" in text
    assert (
        f'  resource "mlx" do\n    url "{part.url}", using: :nounzip\n    sha256 "{part.sha256}"\n  end\n'
        in text
    )
    assert text.count(" do\n") == text.count("\n  end\n") - 1  # `def install` has an end, but no do


def test_the_changelog_tells_of_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\n## {version} (" in (ROOT / "CHANGELOG.md").read_text()
