"""
Define the parts of a model card, and write them as Markdown or HTML.

All text here is plain. Each renderer escapes it in its own way, because names come from
files that other people wrote.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from tollgate.templating import render

_LONGEST = 120  # characters of a foreign text that a card shows


class Name(msgspec.Struct, frozen=True):
    """A text from a model or its rows, shown literally and not as prose."""

    text: str

    @property
    def shown(self) -> str:
        """Return the text on one line, cut when long."""
        found = visible(self.text)
        return found if len(found) <= _LONGEST else found[:_LONGEST] + "…"


Cell = str | Name


class Line(msgspec.Struct, frozen=True):
    """One paragraph, a sequence of text pieces."""

    pieces: tuple[Cell, ...]


class Points(msgspec.Struct, frozen=True):
    """A list of paragraphs."""

    lines: tuple[Line, ...]


class Table(msgspec.Struct, frozen=True):
    """
    A header row and data rows.

    Attributes:
        head: Cells of the header, one for each column.
        rows: As many cells in each; columns after the first are aligned right.
        numbers: True if the columns after the first hold numbers.
        folded: True if an HTML page may hide the table until the reader opens it: it is
            long and seldom read.
        caption: Description of the content; needed where it is folded.
    """

    head: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: bool = True
    folded: bool = False
    caption: str = ""


class Picture(msgspec.Struct, frozen=True):
    """SVG drawings of our own. Only HTML shows them; a table has the same figures."""

    svgs: tuple[str, ...]
    caption: str


Block = Line | Points | Table | Picture


class Section(msgspec.Struct, frozen=True):
    """A heading and the blocks under it."""

    title: str
    blocks: tuple[Block, ...]


class Tile(msgspec.Struct, frozen=True):
    """
    One figure at a glance.

    Attributes:
        detail: Rows or conditions that the figure holds for.
        mood: `bad` if it needs attention.
    """

    title: str
    figure: str
    detail: str
    mood: Literal["plain", "good", "bad"] = "plain"


class Card(msgspec.Struct, frozen=True):
    """A complete model card."""

    title: Line
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]


def line(*pieces: Cell) -> Line:
    """Build a paragraph."""
    return Line(pieces=pieces)


def visible(text: str) -> str:
    """Return a text with line ends, control and invisible characters escaped."""
    # A file's name may hold half a surrogate pair, which UTF-8 cannot encode.
    whole = text.encode("utf-8", "backslashreplace").decode()
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode()
        for one in whole
    )


UNKNOWN = "n/a"


def count(found: int | None) -> str:
    """Format a count."""
    return UNKNOWN if found is None else f"{found:,}"


def share(found: float | None) -> str:
    """Format a share of 1 as per cent, with four digits."""
    return UNKNOWN if found is None else f"{100 * found:.4g} %"


def measure(found: float | None) -> str:
    """Format a quality figure, with four decimals."""
    return UNKNOWN if found is None else f"{found:.4f}"


def value(found: float | None) -> str:
    """Format a feature's value, with six digits."""
    return UNKNOWN if found is None else f"{found:.6g}"


def delta(found: float | None) -> str:
    """Format a difference of probabilities, with three digits."""
    return UNKNOWN if found is None else f"{found:.3g}"


def speed(us: float) -> str:
    """Format µs."""
    return f"{us:.2f}"


def bounds(found: tuple[float, float] | None) -> str:
    """Format an interval."""
    return UNKNOWN if found is None else f"{found[0]:.4f} to {found[1]:.4f}"


# Characters that could begin markup, an address or a cell. A numeric entity never does.
_SPECIAL = re.compile(r"[\\`*_\[\]<>|~&#$@]|:(?=//)|(?<=www)\.")
_NOT_IN_CODE = re.compile(r"[\\`|]")


def markdown_of(card: Card) -> str:
    """Return a card as GitHub-flavoured Markdown, with tables."""
    parts = [f"# {_line(card.title)}"]
    parts.append(
        "\n".join(
            f"* {_prose(one.title)}: **{_prose(one.figure)}**, {_prose(one.detail)}"
            for one in card.tiles
        )
    )
    parts += [_section(one) for one in card.sections]
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> str:
    blocks = [_block(one) for one in section.blocks]
    return "\n\n".join([f"## {_prose(section.title)}", *filter(None, blocks)])


def _block(block: Block) -> str:
    if isinstance(block, Line):
        return _line(block)
    if isinstance(block, Points):
        return "\n".join(f"* {_line(one)}" for one in block.lines)
    if isinstance(block, Picture):
        return ""
    return _table(block)


def _table(table: Table) -> str:
    mark = " ---: |" if table.numbers else " --- |"
    lines = [
        _row(table.head),
        f"| --- |{mark * (len(table.head) - 1)}",
        *map(_row, table.rows),
    ]
    caption = f"{_prose(table.caption)}:\n\n" if table.caption else ""
    return caption + "\n".join(lines)


def _row(cells: tuple[Cell, ...]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _line(found: Line) -> str:
    return "".join(_cell(piece) for piece in found.pieces)


def _cell(cell: Cell) -> str:
    if not isinstance(cell, Name):
        return _prose(cell)
    shown = cell.shown
    # A code span supports no entities, and a bar ends the cell even inside of one.
    plain = shown.strip() and shown == shown.strip() and not _NOT_IN_CODE.search(shown)
    return f"`{shown}`" if plain else _prose(shown)


def _prose(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", visible(text))


def html_of(card: Card) -> str:
    """Return a card as one HTML document."""
    return render(
        "converters/templates/card.html.j2",
        {
            "card": card,
            "is_name": lambda cell: isinstance(cell, Name),
            "kind": _kind,
            "text": _text,
        },
    )


def _kind(block: Block) -> str:
    """Return the name of a block's kind in the template."""
    if isinstance(block, Line):
        return "paragraph"
    if isinstance(block, Points):
        return "list"
    return "picture" if isinstance(block, Picture) else "table"


def _text(cell: Cell) -> str:
    """Return the text of a cell with invisible characters escaped."""
    return cell.shown if isinstance(cell, Name) else visible(cell)
