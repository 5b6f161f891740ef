"""Render a model card as Markdown that every renderer of tables reads the same way."""

from __future__ import annotations

import re

from converters.card.card_document import (
    Block,
    Card,
    Cell,
    Line,
    Name,
    Picture,
    Points,
    Section,
    Table,
    visible,
)

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
