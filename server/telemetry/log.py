"""What the operator reads on stderr: lines for people, or a JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any

LONGEST = 4000
"""Characters of a message; clients' words are in some of them."""

current_request: ContextVar[str | None] = ContextVar("current_request", default=None)
"""The id of the request that is being served where a line is logged."""


def set_up(level: str, form: str = "text") -> None:
    """Send crossturn's log, and what uvicorn has to say beyond its access log, to stderr.

    Args:
        level: the least that is told.
        form: ``text`` or ``json``.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LineFormatter())
    for name, name_level in (("crossturn", level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(name_level)
        logger.propagate = False


def safe(text: str, limit: int = LONGEST) -> str:
    """``text`` as it may stand in a line: line ends, terminal escapes and what turns text around are spelled
    out, and what is too long is cut."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    if cut.isascii() and cut.isprintable():
        return cut
    return "".join(c if c.isprintable() or c == " " else c.encode("unicode_escape").decode() for c in cut)


_TIME = "%Y-%m-%dT%H:%M:%S"


class LineFormatter(logging.Formatter):
    """One line for each record, and a traceback's lines behind it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = safe(record.message)
        request = current_request.get()
        if request is not None and request not in record.message:
            record.message += f" request={request}"
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return "\n".join(safe(line) for line in super().formatException(ei).split("\n"))


class JsonFormatter(logging.Formatter):
    """A JSON object for each record: ``time``, ``level``, ``logger``, ``message``, ``request``,
    ``exception``, and whatever more the record has."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": f"{time.strftime(_TIME, time.gmtime(record.created))}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": safe(record.getMessage()),
        }
        request = current_request.get()
        if request is not None:
            told["request"] = request
        told |= getattr(record, "fields", {})
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)
