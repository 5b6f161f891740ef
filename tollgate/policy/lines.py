"""Read YAML with the line number of every key, for error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tollgate.errors import PolicyError

Place = tuple[str | int, ...]  # keys and positions, from the top of the file

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_AT = re.compile(r" - at `(?:key in )?\$([^`]*)`")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loads times as text: they must have a zone, and are refused without one."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in pairs if tag != _TIMESTAMP]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class Source:
    """
    A YAML file, with the lines of its keys.

    Args:
        path: The file.

    Raises:
        PolicyError: It cannot be read, is no YAML, or has a key twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[Place, int] = {}
        try:
            loader = _Loader(path.read_text(encoding="utf-8"))
            node = loader.get_single_node()
            if node is not None:
                self._walk(node, (), above=())
            self.data = None if node is None else loader.construct_document(node)
        except OSError as exc:
            raise PolicyError(path, f"cannot be read: {exc.strerror}") from exc
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            problem = " ".join(str(exc.problem or exc.context).split())
            line = f"line {mark.line + 1}" if mark else ""
            raise PolicyError(path, problem, where=line) from exc
        except (yaml.YAMLError, ValueError) as exc:
            raise PolicyError(path, " ".join(str(exc).split())) from exc

    def line(self, place: Place) -> int:
        """Return the line of a key, or of the nearest enclosing one; from 1."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place, 1)

    def refuse(self, place: Place, problem: str) -> PolicyError:
        """Build the error that names line and key of the problem."""
        where = f"line {self.line(place)}"
        label = ".".join(self._labels(place))
        return PolicyError(
            self.path, problem, where=f"{where}: {label}" if label else where
        )

    def misfit(self, problem: str) -> PolicyError:
        """
        Build the error for a msgspec message, with line and key instead of a path.
        """
        found = _AT.search(problem)
        place: Place = ()
        for key, index in _STEP.findall(found[1] if found else ""):
            if index == "...":
                break
            place += (key or int(index),)
        unknown = _UNKNOWN.search(problem)
        if unknown is not None:
            place += (unknown[1],)
        return self.refuse(place, _AT.sub("", problem))

    def _labels(self, place: Place) -> Iterator[str]:
        """Replace positions in a list by the names of the items, for a person."""
        at: Any = self.data
        for step in place:
            try:
                at = at[step]
            except (KeyError, IndexError, TypeError):
                at = None
            named = isinstance(step, int) and isinstance(at, dict) and at.get("name")
            yield str(named or step)

    def _walk(self, node: yaml.Node, place: Place, *, above: tuple[int, ...]) -> None:
        if id(node) in above:
            raise yaml.MarkedYAMLError(
                problem="holds itself", problem_mark=node.start_mark
            )
        above = (*above, id(node))
        self._lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            for position, item in enumerate(node.value):
                self._walk(item, (*place, position), above=above)
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value} stands there twice",
                        problem_mark=key.start_mark,
                    )
                seen.add(key.value)
                inner = (*place, key.value)
                self._lines[inner] = key.start_mark.line + 1
                self._walk(value, inner, above=above)


def read_as(source: Source, type_: type[Any]) -> Any:
    """
    Convert the content of a file to a type.

    Raises:
        PolicyError: It does not fit; the message names line and key.
    """
    try:
        return msgspec.convert(source.data, type_)
    except msgspec.ValidationError as exc:
        raise source.misfit(str(exc)) from exc
