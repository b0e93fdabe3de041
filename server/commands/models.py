"""``crossturn models``: the models on this machine, and whether they can run here."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from model.backend import prepare
from server.commands.command import Command, bytes_in_words


def add_options(parser: ArgumentParser) -> None:
    """Directories besides the cache."""
    parser.add_argument("directory", nargs="*", type=Path, help="a checkpoint outside the cache")


def run(chosen: Namespace) -> int:
    """Print a table."""
    prepare()
    from model.backend import detect
    from model.checkpoint.hub import cached_models, resolve
    from model.checkpoint.size import footprint
    from model.device import Device
    from model.errors import ModelError
    from server.engine.assembly import default_budget

    device: Device = detect()

    def line(name: str, path: Path) -> tuple[str, ...]:
        try:
            size = footprint(resolve(str(path)), dtype=device.dtype, has_mtp=True)
        except ModelError as error:
            return name, "-", "-", str(error).replace(f"{path}/", "").replace(f"{path} ", "")
        budget = default_budget(device, size.weights)
        context = size.context_within(budget)
        if size.weights + size.state > device.n_memory_bytes:
            told = f"does not fit: {bytes_in_words(size.weights - device.n_memory_bytes)} too large"
        elif context < size.max_context:
            told = f"fits, with less context than its {size.max_context}"
        else:
            told = "fits"
        if size.has_mtp:
            told += ", with an MTP head"
        return name, bytes_in_words(size.weights), str(context) if context else "-", told

    def lines() -> Iterator[tuple[str, ...]]:
        yield line("demo", resolve("demo"))
        for directory in chosen.directory:
            yield line(str(directory), directory)
        for name, path in cached_models():
            yield line(name, path)

    print(f"{device.name}: {bytes_in_words(device.n_memory_bytes)} for a model and its conversations\n")
    print(_table([("MODEL", "WEIGHTS", "CONTEXT", ""), *lines()]))
    return 0


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip()
        for row in rows
    )


MODELS = Command(
    "models",
    "list the models in the Hugging Face cache, with the memory and the context each would have",
    add_options,
    run,
)
