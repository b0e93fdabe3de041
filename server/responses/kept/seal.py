"""Thoughts that clients carry for the server: ``encrypted_content``, which only the server can make.

A blob contains the compressed thought and a keyed checksum: it is authentic, not secret. (A client that asks
for it has been sent the plain thought as well.) A tenant can open only its own blobs.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import zlib
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

_VERSION = b"ct1"
_MAC_BYTES = 16
KEY_BYTES = 32


class Seal:
    """Makes blobs of thoughts, and opens them.

    Args:
        key: needed to make and to open blobs.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def close(self, thought: str, tenant: str | None) -> str:
        """The blob of ``thought``."""
        packed = zlib.compress(thought.encode("utf-8", "surrogatepass"))
        return base64.urlsafe_b64encode(_VERSION + self._mac(packed, tenant) + packed).decode()

    def open(self, blob: str, tenant: str | None) -> str | None:
        """The thought in ``blob``; None if this server has not made it for ``tenant``."""
        try:
            raw = base64.urlsafe_b64decode(blob.encode())
        except (binascii.Error, ValueError):
            return None
        head = len(_VERSION)
        mac, packed = raw[head : head + _MAC_BYTES], raw[head + _MAC_BYTES :]
        if not raw.startswith(_VERSION) or not hmac.compare_digest(mac, self._mac(packed, tenant)):
            return None
        return zlib.decompress(packed).decode("utf-8", "surrogatepass")

    def _mac(self, packed: bytes, tenant: str | None) -> bytes:
        owner = b"-" if tenant is None else b"+" + tenant.encode()
        digest = blake2b(key=self._key, digest_size=_MAC_BYTES, person=b"crossturn-seal")
        digest.update(len(owner).to_bytes(8, "little") + owner + packed)
        return digest.digest()


def seal_key(folder: Path | None) -> bytes:
    """The key in ``folder``, made if it is missing; without a folder, one for this process.

    Raises:
        OSError: the folder cannot be used.
    """
    if folder is None:
        return secrets.token_bytes(KEY_BYTES)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "seal-key"
    with suppress(FileNotFoundError):
        if path.stat().st_size == KEY_BYTES:
            return path.read_bytes()  # nothing has to be written, and perhaps nothing can be
        path.unlink()
    new = folder / f"seal-key-{secrets.token_hex(8)}"
    new.touch(mode=0o600)
    new.write_bytes(secrets.token_bytes(KEY_BYTES))
    with suppress(FileExistsError):
        path.hardlink_to(new)  # atomic, and the first of several servers wins
    new.unlink()
    return path.read_bytes()
