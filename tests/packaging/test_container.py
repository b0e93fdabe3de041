"""The container's image is made of files that exist and of the locked versions."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from tests.packaging.test_formula import ROOT, normal

DOCKERFILE = (ROOT / "Dockerfile.macos").read_text()
LOCK = dict(line.split("==") for line in (ROOT / "packaging" / "linux-arm64.txt").read_text().split())


def test_every_copied_file_is_there() -> None:
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = [source for copy in copies for source in copy.split()]
    assert {"pyproject.toml", "server", "model", "cache", "packaging/linux-arm64.txt"} <= set(sources)
    assert all((ROOT / source).exists() for source in sources)


def test_what_the_build_needs_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [project["project"]["readme"], *project["project"]["license-files"]]
    needed += project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert all(re.search(rf"^COPY .*\b{re.escape(name)}\b", DOCKERFILE, re.MULTILINE) for name in needed)


def test_the_lock_of_the_image_is_within_the_projects_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in (*project["dependencies"], *project["optional-dependencies"]["cpu"]):
        wanted = Requirement(text)
        assert wanted.specifier.contains(LOCK[normal(wanted.name)]), text
    assert {"mlx-cpu", "scipy-openblas32"} <= LOCK.keys()
    assert not {"mlx-metal", "mlx-cuda-13"} & LOCK.keys()


def test_it_runs_as_nobody_special_and_tells_its_health() -> None:
    assert re.search(r"^USER crossturn$", DOCKERFILE, re.MULTILINE)
    assert "/health" in DOCKERFILE
    assert '"--host", "0.0.0.0"' in DOCKERFILE
