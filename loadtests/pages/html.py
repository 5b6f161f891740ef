"""Write the report as one self-contained HTML page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from loadtests.pages.cells import Table

# The page loads nothing: pictures are part of it.
_SAFE = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --soft: #5c6570; --rule: #dde1e5;
  --ground: #fbfbfa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --soft: #9aa4ae;
  --rule: #343a41; --ground: #15181c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 100rem;
  background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0; font-size: 1.8rem; } h2 { margin: 2.25rem 0 .4rem; font-size: 1.15rem; }
p, li { max-width: 60rem; } p { margin: .3rem 0; } .soft { color: var(--soft); }
ul { padding-left: 1.2rem; }
code { font: .86em/1.4 ui-monospace, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; }
th, td { padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--rule);
  text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap;
  vertical-align: top; }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child, .words { text-align: left; }
td:first-child { font-weight: 500; }
img { display: block; max-width: 100%; margin: .75rem 0; border-radius: .4rem;
  background: #fff; }
"""


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
    shown = [
        f'<img alt="{escape(words)}" src="data:image/png;base64,'
        f'{base64.b64encode(content).decode()}">'
        for words, content in pictures
    ]
    parts = [
        *(_section(table) for table in tables[:1]),
        "<h2>Pictures</h2>" if shown else "",
        *shown,
        *(_section(table) for table in tables[1:]),
        "<h2>How it was measured</h2><ul>",
        *(f"<li>{_with_code(note)}</li>" for note in notes),
        "</ul>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_SAFE}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>" + "\n".join(parts) + "</body></html>\n"
    )


def _section(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join(
        "<tr>"
        + "".join(f"<td{_kind(cell)}>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<h2>{escape(table.title)}</h2><p class="soft">{escape(table.note)}</p>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _kind(cell: str) -> str:
    """Return the class that aligns text to the left and numbers to the right."""
    return "" if cell[:1].isdigit() or cell in ("none", "") else ' class="words"'


def _with_code(note: str) -> str:
    """Escape a line; text in backquotes becomes code."""
    parts = escape(note).split("`")
    return "".join(
        f"<code>{part}</code>" if place % 2 else part
        for place, part in enumerate(parts)
    )
