"""What operators watch: `metrics`, `alerts` and `dashboards`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tollgate.cli import console
from tollgate.errors import InputError

BEGIN, END = "<!-- tables: tollgate metrics --into -->\n", "<!-- end of tables -->"


def metrics(
    into: Annotated[
        Path | None,
        typer.Option(help="Page to write the tables into, between its two marks."),
    ] = None,
) -> None:
    """List every metric there is: name, kind, unit, labels, meaning, by page."""
    from tollgate.observability.table import tables_text

    text = tables_text()
    if into is None:
        console.out.print(text, highlight=False, markup=False, soft_wrap=True)
        return
    try:
        page = into.read_text()
    except OSError as exc:
        raise InputError(into, f"cannot be read: {exc.strerror}") from exc
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise InputError(into, f"has no {BEGIN.strip()} … {END}")
    into.write_text(f"{head}{begin}\n{text}\n{end}{tail}")
    console.say(f"written: {into}")
