"""Serves the files of the page from memory. They need no key; the page's requests to the API do."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Request, Response

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Nothing from elsewhere, nothing inline: what a model writes can at worst look odd."""

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # revalidated: the page is updated with the server
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page.

    Attributes:
        etag: of the content.
    """

    content: bytes
    media_type: str
    etag: str

    def answer(self, request: Request) -> Response:
        """The file, or 304 if the browser has it."""
        headers = {**_HEADERS, "ETag": self.etag}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def read_page() -> dict[str, PageFile]:
    """The files of the page by name."""
    found = {}
    for file in (files(__package__) / "static").iterdir():
        media_type = _MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            content = file.read_bytes()
            digest = hashlib.blake2b(content, digest_size=12).hexdigest()
            found[file.name] = PageFile(content, media_type, f'"{digest}"')
    return found


def wants_page(request: Request) -> bool:
    """Whether a browser asks, and not a program that checks whether the server is up."""
    return "text/html" in request.headers.get("accept", "")


def router(page: dict[str, PageFile]) -> APIRouter:
    """The files that the page at ``/`` loads."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/page/{name}")
    @routes.head("/page/{name}")
    async def page_file(request: Request, name: str) -> Response:
        file = page.get(name)
        return Response(status_code=404) if file is None else file.answer(request)

    return routes
