"""Write YAML as a person would: short, aligned by hand, with comments."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence

WIDTH = 88
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Texts that a YAML reader would not read as text.
_OTHERWISE = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def scalar(text: str) -> str:
    """Format a text, in quotes where it needs them."""
    if _PLAIN.fullmatch(text) and text.lower() not in _OTHERWISE:
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def number(value: float) -> str:
    """Format a number so that it reads back the same: whole ones without a point."""
    if value == int(value):
        return str(int(value))
    short = f"{value:.10f}".rstrip("0")
    if float(short) == value:
        return short
    digits, mark, power = repr(value).partition("e")
    # Without a point, YAML reads a power of ten as text.
    return f"{digits}{'' if '.' in digits else '.0'}{mark}{power}"


def comment(text: str) -> str:
    """Format a sentence as a comment, wrapped where it is long."""
    return textwrap.fill(
        text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )


def flow_list(words: Sequence[str], *, indent: int) -> str:
    """Format a list in brackets, wrapped where it is long."""
    lines, line = [], "["
    for at, word in enumerate(words):
        item = scalar(word) + ("," if at + 1 < len(words) else "]")
        if len(line) > 1 and indent + len(line) + 1 + len(item) > WIDTH:
            lines.append(line)
            line = ""
        line += item if line in ("", "[") else f" {item}"
    lines.append(line)
    return ("\n" + " " * indent).join(lines)
