"""The answer to a bare `/`: the pages of an HTTP port, one line each."""

from __future__ import annotations

from collections.abc import Mapping

INDEX = "/"
CONTENT_TYPE = "text/plain; charset=utf-8"
NOT_FOUND = b"not found; / lists the pages\n"


def index_page(title: str, pages: Mapping[str, str]) -> bytes:
    """
    List pages.

    Args:
        title: What answers at this port.
        pages: Path to a few words about the page.
    """
    width = max(map(len, pages))
    lines = [title, "", *(f"{path:{width}}  {text}" for path, text in pages.items())]
    return ("\n".join(lines) + "\n").encode()
