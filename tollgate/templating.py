"""
Render Jinja templates: configurations, scripts and HTML pages.

A template lies in the folder `templates` of the package that renders it. It may use
only names that have a value. HTML (`*.html.j2`) escapes every value; other templates
quote values with a filter: `yaml`, `number`, `flow_list`, `comment`, `python`, `repr`.
"""

from __future__ import annotations

import functools
import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2

WIDTH = 88
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Texts that a YAML reader would not read as text.
_YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def render(template: str, values: Mapping[str, object]) -> str:
    """
    Render a template.

    Args:
        template: Path of the file, from the package's name on, such as
            `tollgate/product/templates/slo.yaml.j2`.
        values: Value of each name that the template uses.
    """
    return _environment().get_template(template).render(values)


def yaml_text(text: str) -> str:
    """Format a text for YAML, in quotes where it needs them."""
    if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    return _quoted(text)


def yaml_number(value: float) -> str:
    """Format a number so that it reads back the same: whole ones without a point."""
    if math.isnan(value):
        return ".nan"
    if value == int(value):
        return str(int(value))
    short = f"{value:.10f}".rstrip("0")
    if float(short) == value:
        return short
    digits, mark, power = repr(value).partition("e")
    # Without a point, YAML reads a power of ten as text.
    return f"{digits}{'' if '.' in digits else '.0'}{mark}{power}"


def yaml_list(words: Sequence[str], *, indent: int) -> str:
    """Format a list in brackets, wrapped where it is long."""
    lines, line = [], "["
    for at, word in enumerate(words):
        item = yaml_text(word) + ("," if at + 1 < len(words) else "]")
        if len(line) > 1 and indent + len(line) + 1 + len(item) > WIDTH:
            lines.append(line)
            line = ""
        line += item if line in ("", "[") else f" {item}"
    lines.append(line)
    return ("\n" + " " * indent).join(lines)


def comment(text: str) -> str:
    """Format a sentence as a comment, wrapped where it is long."""
    return textwrap.fill(
        text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )


def python_literal(value: object) -> str:
    """Format a number or a text as Python source."""
    if not isinstance(value, str):
        return repr(value)
    return _quoted(value)


def _quoted(text: str) -> str:
    """Put a text in double quotes, with the escapes that YAML and Python share."""
    return "".join(
        one
        if one.isprintable()
        else (f"\\u{ord(one):04x}" if ord(one) < 0x10000 else f"\\U{ord(one):08x}")
        for one in json.dumps(text, ensure_ascii=False)
    )


def _read(template: str) -> str | None:
    """Read a template of an installed package; None if there is none."""
    package, _, path = template.partition("/")
    try:
        return (resources.files(package) / path).read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        return None


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        undefined=jinja2.StrictUndefined,
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "comment": comment,
        "flow_list": yaml_list,
        "number": yaml_number,
        "python": python_literal,
        "repr": repr,
        "yaml": yaml_text,
    }
    return environment
