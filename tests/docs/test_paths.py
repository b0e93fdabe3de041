"""Every file of the project that a page or a docstring names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = "bench|cache|docs|model|packaging|scripts|server|tests"
NAMED = re.compile(rf"(?<![\w/.~-])(?:{ROOMS})/[\w./*-]*\w")
OTHERS = ("tests/api_resources/", "tests/entrypoints/")  # in the openai and vLLM repositories
PLANTED = {"tests/docs/test_paths.py", "tests/packaging/test_scripts.py"}  # paths that are meant not to exist
TEST = re.compile(r"(?<![\w/.-])(tests/[\w/]+\.py)::([\w*]+)")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SOURCES = sorted(
    path for room in ROOMS.split("|") for path in (ROOT / room).rglob("*.py") if "node" not in path.parts
)


def missing(text: str) -> list[str]:
    found = {match.group().split("::")[0] for match in NAMED.finditer(text)}
    return sorted(name for name in found if not name.startswith(OTHERS) and not _is_there(name))


def missing_tests(text: str) -> list[str]:
    named = {match.groups() for match in TEST.finditer(text)}
    return sorted(f"{path}::{test}" for path, test in named if not _has_test(ROOT / path, test))


def _is_there(name: str) -> bool:
    return any(next(ROOT.glob(name + ending), None) is not None for ending in ("", ".py"))


def _has_test(path: Path, name: str) -> bool:
    pattern = re.escape(name).replace(r"\*", r"\w*")
    return (
        path.exists()
        and re.search(rf"^(?:async )?def {pattern}\(", path.read_text(), re.MULTILINE) is not None
    )


def test_a_file_that_is_gone_is_noticed() -> None:
    assert missing("see `docs/architecture.md` and `server/engine/gone.py`") == ["server/engine/gone.py"]
    assert missing_tests("`tests/docs/test_paths.py::test_gone_*`") == [
        "tests/docs/test_paths.py::test_gone_*"
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_in_a_page_exists(page: Path) -> None:
    text = page.read_text()
    assert missing(text) == []
    assert missing_tests(text) == []


def test_every_path_in_the_sources_exists() -> None:
    gone = {str(path.relative_to(ROOT)): missing(path.read_text()) for path in SOURCES}
    assert {path: names for path, names in gone.items() if names and path not in PLANTED} == {}
