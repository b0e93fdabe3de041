"""What the server keeps for this dialect: responses, and the key to the thoughts that clients carry."""

from __future__ import annotations

from dataclasses import dataclass

from server.responses.kept.seal import Seal, seal_key
from server.responses.kept.store import ResponseStore
from server.settings import Settings

FOLDER = "responses"
"""Below the cache folder."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Used by the thread that reads and renders requests, alone."""

    store: ResponseStore
    seal: Seal


def open_shelf(settings: Settings) -> Shelf:
    """The shelf in the cache folder, where there is one; else in memory.

    Raises:
        OSError: the folder cannot be used.
    """
    folder = None if settings.cache_dir is None else settings.cache_dir / FOLDER
    return Shelf(ResponseStore(settings.response_store, folder), Seal(seal_key(folder)))
