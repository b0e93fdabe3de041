"""The API of a running server, for the commands that are its clients, with the standard library alone."""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any, cast

from model.errors import CrossturnError

DEFAULT_URL = "http://127.0.0.1:8000"


class ApiError(CrossturnError):
    """The server refused or could not be reached; the message is one line for a terminal.

    Attributes:
        status: of the response; 0 if there was none.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def add_server(parser: ArgumentParser) -> None:
    """Add the options that select a server to ``parser``."""
    parser.add_argument(
        "--url",
        default=os.environ.get("CROSSTURN_URL", DEFAULT_URL),
        help=f"the server (default: $CROSSTURN_URL, or {DEFAULT_URL})",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=os.environ.get("CROSSTURN_API_KEY"),
        help="its key, if it asks for one (default: $CROSSTURN_API_KEY)",
    )


class Api:
    """One server.

    Args:
        url: with or without ``/v1`` at its end.
        key: the API key, or None.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._key = key

    @classmethod
    def of(cls, chosen: Namespace) -> Api:
        """The server that the options of :func:`add_server` name."""
        return cls(chosen.url, chosen.api_key)

    def get(self, path: str) -> Any:
        """The JSON at ``path``.

        Raises:
            ApiError: as all methods do.
        """
        with self.open(path) as response:
            return json.load(response)

    def post(self, path: str, body: object) -> Any:
        """The JSON that answers ``body``."""
        with self.open(path, json.dumps(body).encode(), "application/json") as response:
            return json.load(response)

    def delete(self, path: str) -> Any:
        """The JSON that answers a DELETE."""
        with self.open(path, method="DELETE") as response:
            return json.load(response)

    def download(self, path: str, to: Path) -> int:
        """Download ``path`` into a file, which appears when it is complete; its size in bytes."""
        part = to.with_name(to.name + ".part")
        try:
            with self.open(path) as response, part.open("wb") as file:
                shutil.copyfileobj(response, file)
                n_bytes = file.tell()
            part.replace(to)
        except OSError as error:
            raise ApiError(f"{to} cannot be written: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)
        return n_bytes

    def upload(self, path: str, content: Path | IO[bytes], **query: str | None) -> Any:
        """Send a file; the JSON that answers it."""
        given = {name: value for name, value in query.items() if value is not None}
        whole = f"{path}?{urllib.parse.urlencode(given)}" if given else path
        if not isinstance(content, Path):
            with self.open(whole, content, "application/x-tar") as response:
                return json.load(response)
        try:
            file = content.open("rb")
        except OSError as error:
            raise ApiError(f"{content} cannot be read: {error.strerror}") from error
        with file, self.open(whole, file, "application/x-tar") as response:
            return json.load(response)

    def opened(self, path: str, body: object) -> Any:
        """The response to ``body``, a context in which it can be read as a file."""
        return self.open(path, json.dumps(body).encode(), "application/json")

    @contextmanager
    def open(
        self,
        path: str,
        data: bytes | IO[bytes] | None = None,
        content_type: str | None = None,
        *,
        method: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        """The response at ``path``, as a context in which it is read."""
        known = {"Content-Type": content_type, "Authorization": self._key and f"Bearer {self._key}"}
        sent = {**{name: value for name, value in known.items() if value}, **(headers or {})}
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request) as response:
                yield cast(HTTPResponse, response)
        except urllib.error.HTTPError as error:
            raise ApiError(_message_of(error), error.code) from None
        except (urllib.error.URLError, HTTPException, ConnectionError) as error:
            reason = getattr(error, "reason", None) or error
            raise ApiError(f"no server answers at {self.url}: {reason}") from None


def _message_of(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code} {error.reason}"
