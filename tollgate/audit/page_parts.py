"""Render the parts of an HTML page: tiles, sections and tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tollgate.audit.told import Description


def list_section(
    title: str, descriptions: Sequence[Description], *, nothing: str
) -> str:
    """Render a section of names and values, or the text `nothing` if there are none."""
    if not descriptions:
        return section(title, f'<p class="soft">{nothing}</p>')
    return section(title, table(("", ""), lines(descriptions)))


def lines(descriptions: Sequence[Description]) -> list[str]:
    """Render table rows of names and values."""
    return [
        f"<tr><th>{escape(one.name)}</th><td>{escape(one.value)}</td></tr>"
        for one in descriptions
    ]


def table(heads: Sequence[str], rows: Sequence[str]) -> str:
    """Render a table; without a head if all heads are empty."""
    head = "".join(f"<th>{name}</th>" for name in heads) if any(heads) else ""
    return (
        '<div class="scroll"><table>'
        + (f"<thead><tr>{head}</tr></thead>" if head else "")
        + f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def section(title: str, content: str) -> str:
    """Render a section."""
    return f"<section><h2>{title}</h2>{content}</section>\n"


def tiles(figures: Sequence[tuple[str, str]]) -> str:
    """Render the key figures at the top of a page: name and value of each."""
    return (
        '<dl class="tiles">'
        + "".join(
            f'<div class="tile"><dt>{name}</dt><dd>{escape(value)}</dd></div>'
            for name, value in figures
        )
        + "</dl>"
    )


def track(description: Description) -> str:
    """Draw the position of a value among the training values, by their quantiles."""
    if description.place is None:
        return '<span class="soft">not known</span>'
    at = description.place * 100
    words = (
        "outside of training"
        if description.outside
        else f"above {at:.0f} % of training"
    )
    kind = "track out" if description.outside else "track"
    return (
        f'<span class="{kind}" title="{words}"><i style="left:{at:.0f}%"></i></span>'
        + ('<span class="bad soft">outside</span>' if description.outside else "")
    )
