"""``crossturn check``."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from model.backend import prepare
from model.errors import CrossturnError
from server.commands.command import Command


def add_options(parser: ArgumentParser) -> None:
    """The model, and where the report goes."""
    parser.description = (
        "Compares every kernel with plain operations, every way to a state with every other, a warm "
        "conversation with a cold one, and times prompts and replies beside mlx-lm. Ends with status 1 where "
        "something differs."
    )
    parser.add_argument("--model", default="demo", help="demo, a directory, or a Hugging Face repository")
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16", "float32"),
        help="the dtype to compute in (default: that of `crossturn serve`)",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write the table in Markdown, without paths and names"
    )


def run(chosen: Namespace) -> int:
    """Print the table and the verdict; 1 where something differs."""
    prepare()
    from model.checkpoint.hub import resolve
    from server.check.result import Section, differing, report, table, verdict
    from server.check.run import check

    start = time.perf_counter()

    def tell(section: Section) -> None:
        print(table(section), end="\n\n", flush=True)

    sections = check(resolve(chosen.model), chosen.dtype, tell)
    print(f"{verdict(sections)} ({time.perf_counter() - start:.0f} s)")
    if chosen.report is not None:
        _write(chosen.report.expanduser(), report(sections))
    return 1 if differing(sections) else 0


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CrossturnError(f"the report cannot be written to {file}: {error.strerror}") from error
    print(f"the report is in {file}: please send it with a fault that you report")


CHECK = Command(
    "check", "prove on this machine that a model computes what it should, and how fast", add_options, run
)
