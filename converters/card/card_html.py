"""Render a model card as one HTML page that loads no resource and runs no script."""

from __future__ import annotations

from converters.card.card_document import (
    Block,
    Card,
    Cell,
    Line,
    Name,
    Picture,
    Points,
    visible,
)
from tollgate.templating import render


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
