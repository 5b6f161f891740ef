"""
Define the parts of a model card, independent of Markdown or HTML.

All text here is plain. Each renderer escapes it in its own way, because names come from
files that other people wrote.
"""

from __future__ import annotations

from typing import Literal

import msgspec

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
        title: Name of the figure.
        figure: The figure.
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
