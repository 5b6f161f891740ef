"""Write the report as one self-contained HTML page."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from loadtests.pages.cells import Table
from tollgate.templating import render


def page(
    title: str,
    *,
    tables: Sequence[Table],
    pictures: Sequence[tuple[str, bytes]],
    notes: Sequence[str],
) -> str:
    """
    Write the page.

    Args:
        title: Title of the page.
        tables: In order; the first stands before the pictures.
        pictures: Caption and PNG of each picture.
        notes: Notes on the measurement, a line each.
    """
    return render(
        "loadtests/pages/templates/report.html.j2",
        {
            "title": title,
            "tables": tables,
            "pictures": [
                (caption, base64.b64encode(png).decode()) for caption, png in pictures
            ],
            "notes": notes,
        },
    )
