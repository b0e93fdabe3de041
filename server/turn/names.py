"""Errors are raised in a turn's own words; a client reads them in those of its dialect."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from model.errors import InputError


@contextmanager
def named_as(names: Mapping[str, str]) -> Generator[None, None, None]:
    """Errors that are raised inside name their field as ``names`` has it."""
    try:
        yield
    except InputError as error:
        if not names or error.param is None:
            raise
        raise renamed(error, names) from error


def renamed(error: InputError, names: Mapping[str, str]) -> InputError:
    """``error`` with its field renamed, in its sentence too."""
    param = error.param or ""
    known = [path for path in names if param == path or param.startswith((f"{path}.", f"{path}["))]
    if not known:
        return error
    path = max(known, key=len)
    told = names[path] + param.removeprefix(path)
    return InputError(error.message.replace(param, told), param=told, code=error.code)
