"""What stands in a thinking block's ``signature``.

Clients want one and send it back unread. Where they do not want to see the thought, it holds the thought, so
that the next prompt can be the one that the model has read; elsewhere it only names the thought. It proves
nothing: whoever could forge a signature could as well send a thinking block with any text.
"""

from __future__ import annotations

import base64
import hashlib
import zlib

CARRIER = "crossturn-thought-1."
NAME = "crossturn-named-1."
MAX_BYTES = 4 * 1024 * 1024
"""More than any context has room for: a few kilobytes of zeros unpack to gigabytes."""


def naming(thought: str) -> str:
    """A signature for a thought that is sent beside it."""
    return NAME + hashlib.blake2b(thought.encode(), digest_size=16).hexdigest()


def carrying(thought: str) -> str:
    """A signature that holds the thought."""
    return CARRIER + base64.b64encode(zlib.compress(thought.encode())).decode()


def thought_in(signature: str | None) -> str | None:
    """The thought that ``signature`` holds; None where it holds none, as another server's does."""
    if signature is None or not signature.startswith(CARRIER):
        return None
    try:
        packed = base64.b64decode(signature.removeprefix(CARRIER), validate=True)
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, MAX_BYTES)
        return text.decode() if unpacker.eof else None
    except (ValueError, zlib.error):
        return None
