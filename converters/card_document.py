"""
What a model card consists of, before it is Markdown or HTML.

Every text here is plain: each form of the card escapes it in its own way, because
names come out of files that others wrote.
"""

from __future__ import annotations

from typing import Literal

import msgspec

_LONGEST = 120  # characters of a foreign text; a card is read, not searched


class Name(msgspec.Struct, frozen=True):
    """A text out of a model or its rows, shown as it is and not as prose."""

    text: str

    @property
    def shown(self) -> str:
        """The text on one line, cut when long."""
        found = visible(self.text)
        return found if len(found) <= _LONGEST else found[:_LONGEST] + "…"


Cell = str | Name


class Line(msgspec.Struct, frozen=True):
    """One paragraph, from pieces."""

    pieces: tuple[Cell, ...]


class Points(msgspec.Struct, frozen=True):
    """A list of paragraphs."""

    lines: tuple[Line, ...]


class Table(msgspec.Struct, frozen=True):
    """
    Rows under a head.

    Attributes:
        head: One cell per column.
        rows: As many cells in each; columns after the first are aligned right.
        numbers: Whether the columns after the first hold numbers.
        folded: Long and seldom read: a page may hide it until it is asked for.
        caption: What it shows; needed where it is folded.
    """

    head: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: bool = True
    folded: bool = False
    caption: str = ""


class Picture(msgspec.Struct, frozen=True):
    """Drawings of our own making; only a page shows them, a table says the same."""

    svgs: tuple[str, ...]
    caption: str


Block = Line | Points | Table | Picture


class Section(msgspec.Struct, frozen=True):
    """A heading and what stands under it."""

    title: str
    blocks: tuple[Block, ...]


class Tile(msgspec.Struct, frozen=True):
    """
    One figure at a glance.

    Attributes:
        title: What it is.
        figure: The figure.
        detail: What it holds for.
        mood: `bad` where it needs attention.
    """

    title: str
    figure: str
    detail: str
    mood: Literal["plain", "good", "bad"] = "plain"


class Card(msgspec.Struct, frozen=True):
    """A whole model card."""

    title: Line
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]


def line(*pieces: Cell) -> Line:
    """Make a paragraph."""
    return Line(pieces=pieces)


def visible(text: str) -> str:
    """Return a text with line ends, control and invisible characters written out."""
    # A file's name may hold half a surrogate pair, which no file of text can.
    whole = text.encode("utf-8", "backslashreplace").decode()
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode()
        for one in whole
    )
