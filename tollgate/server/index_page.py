"""Answer a request for `/` with a list of the pages of an HTTP port, one per line."""

from __future__ import annotations

from collections.abc import Mapping

INDEX = "/"
CONTENT_TYPE = "text/plain; charset=utf-8"
NOT_FOUND = b"not found; / lists the pages\n"


def index_page(title: str, pages: Mapping[str, str]) -> bytes:
    """Format the list of pages, with a short description of each path, as text."""
    width = max(map(len, pages))
    lines = [title, "", *(f"{path:{width}}  {text}" for path, text in pages.items())]
    return ("\n".join(lines) + "\n").encode()
