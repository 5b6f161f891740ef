"""
Find the line of a config.pbtxt on which a field stands.

Protobuf's own parser forgets lines as it goes, so the text is read a second time here,
for its structure alone. That parser (`tollgate.repository.configs`) decides if the text
is a valid configuration; text that cannot be read here gets the last line that could be
read.

A path names fields from the outside in, joined by dots. An entry of a list or of a map
is chosen by its name, model_name or key, in brackets, or by its number after a hash:

    dynamic_batching.max_queue_delay_microseconds
    ensemble_scheduling.step[fraud_model].input_map[features]
    instance_group[#1].count
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_TOKEN = re.compile(
    r"""(?P<space>[\s;,]+|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<mark>[\[\]{}<>:])
      | (?P<word>[^\s;,\[\]{}<>:"'\#]+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_PART = re.compile(r"(\w+)(?:\[([^\]]*)\])?(?:\.|$)")
_NAMES = ("name", "model_name", "key", "family")
_OPENING, _CLOSING = "{<", "}>"


class Node(msgspec.Struct):
    """
    One field of the text.

    Attributes:
        name: Name of the field; empty for the whole file.
        line: Line on which it begins, from 1.
        value: Value of a scalar, without quotes; empty for a message.
        fields: Fields of a message, in their order.
    """

    name: str
    line: int
    value: str = ""
    fields: list[Node] = msgspec.field(default_factory=list)

    def named(self, name: str, selector: str | None) -> Node | None:
        """Find the first field of a name that the selector chooses; None: any."""
        found = [field for field in self.fields if field.name == name]
        if selector is None:
            return found[0] if found else None
        if selector.startswith("#"):
            place = int(selector[1:])
            return found[place] if place < len(found) else None
        for field in found:
            if any(
                inner.name in _NAMES and inner.value == selector
                for inner in field.fields
            ):
                return field
        return None


def read_tree(text: str) -> Node:
    """Read the structure of protobuf text; never fails."""
    root = Node(name="", line=1)
    tokens = list(_tokens(text))
    if tokens:
        root.line = tokens[0][2]
    _Reader(tokens).message(root, closing="")
    return root


def line_of(tree: Node, path: str) -> int:
    """
    Return the line of a field, or of the nearest existing field around it.

    Args:
        tree: Result of `read_tree`.
        path: Path of the field, as described above; empty for the file's first field.
    """
    node = tree
    for name, selector in _PART.findall(path):
        # findall does not distinguish a missing bracket from an empty one.
        inner = node.named(name, selector or None)
        if inner is None:
            break
        node = inner
    return node.line


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield kind, text and line of everything but space and comments."""
    line = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind != "space":
            yield kind, match[0], line
        line += match[0].count("\n")


class _Reader:
    """
    Parse tokens into fields.

    Args:
        tokens: Kind, text, line.
    """

    def __init__(self, tokens: list[tuple[str, str, int]]) -> None:
        self._tokens = tokens
        self._next = 0

    def _peek(self) -> str:
        """Return the next token without taking it; empty at the end."""
        at_end = self._next >= len(self._tokens)
        return "" if at_end else self._tokens[self._next][1]

    def _take(self) -> tuple[str, str, int]:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def message(self, node: Node, *, closing: str) -> None:
        """Read fields until the bracket that closes their message."""
        while self._peek():
            kind, text, line = self._take()
            if closing and text in closing:
                return
            if kind == "word":
                self._field(node, name=text, line=line)

    def _field(self, parent: Node, *, name: str, line: int) -> None:
        """Read the part after a name: a value, or a list, one field for each entry."""
        if self._peek() == ":":
            self._take()
        if self._peek() != "[":
            parent.fields.append(self._value(name, line))
            return
        self._take()
        while self._peek() not in ("", "]"):
            start = self._next
            # An entry of a list begins at its own bracket or word.
            parent.fields.append(self._value(name, self._tokens[start][2]))
            if self._next == start:
                self._take()  # a stray bracket: skip it
        if self._peek():
            self._take()

    def _value(self, name: str, line: int) -> Node:
        """Read a message or a scalar; adjacent strings are one."""
        node = Node(name=name, line=line)
        if self._peek() and self._peek() in _OPENING:
            self._take()
            self.message(node, closing=_CLOSING)
            return node
        kind = self._tokens[self._next][0] if self._peek() else ""
        if kind == "word":
            node.value = self._take()[1]
        while self._peek() and self._tokens[self._next][0] == "string":
            node.value += self._take()[1][1:-1]
        return node
