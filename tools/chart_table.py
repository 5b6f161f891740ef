"""The table of the chart's values in helm/README.md, made of values.yaml's comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

BEGIN = "<!-- values: `make chart` compares, tools/chart.py --write renews -->"
END = "<!-- end of values -->"


def with_table(paper: str, values: Path) -> str:
    """Put the table between its marks."""
    head, _, rest = paper.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table(values)}{END}{tail}"


def table_in(paper: str, values: Path) -> bool:
    """Tell whether a paper has the table as it must be."""
    return BEGIN in paper and with_table(paper, values) == paper


def table(values: Path) -> str:
    """Make a row of each value; of a list or an empty map, of the whole."""
    text = values.read_text()
    node = yaml.compose(text)
    rows = ["| key | default | |", "|---|---|---|"]
    for path, default, comment in _leaves(node, text.splitlines(), ()):
        shown = json.dumps(default, ensure_ascii=False)
        rows.append(f"| `{'.'.join(path)}` | `{shown}` | {comment} |")
    return "\n".join(rows) + "\n"


def _leaves(
    node: Any, lines: list[str], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Walk down to what a person would set: key path, default, comment."""
    for key, value in node.value:
        path = (*above, key.value)
        comment = _comment(lines, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and value.value:
            # A comment on a group goes to the row of its first member.
            first = True
            for one, default, own in _leaves(value, lines, path):
                text = " ".join(filter(None, (comment if first else "", own)))
                yield one, default, text
                first = False
            continue
        default = yaml.safe_load(yaml.serialize(value))
        yield path, default, comment


def _comment(lines: list[str], line: int) -> str:
    """Take the comment that stands right above a line."""
    found: list[str] = []
    for above in reversed(lines[:line]):
        said = re.fullmatch(r"\s*# (.*)", above)
        if said is None:
            break
        found.append(said[1])
    return " ".join(reversed(found)).replace("|", "\\|")
