"""The keys of features.yaml as written; docs/features.md explains each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml

from tollgate.errors import SpecError
from tollgate.schema import FieldType as FieldType

SPEC_VERSION = 1
MAX_ENTRIES = 1024  # events per value; larger ones cost 190 µs an update and more
MAX_SPAN_DAYS = 3653  # ten years: TTLs and search keys have room for far more
LABEL = "label"
LABEL_TIME = "label_time"
VALID_FROM = "valid_from"  # column of a table

Aggregate = Literal[
    "count", "sum", "mean", "min", "max", "last", "distinct", "flagged", "share"
]
Calendar = Literal["weekend", "night"]
FieldUse = Literal["features", "policy"]
Feed = Literal["purchases", "labels"]

_UNIT_US = {"s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}


class RawEntity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entity as written in the file."""

    key: str
    hop: int | str = 0
    delay: str = "0s"
    cap: int = MAX_ENTRIES


class RawTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as written in the file."""

    entity: str
    max_age: str = "0s"
    refresh: str = "0s"


class RawField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A declared request field as written in the file."""

    name: str
    type: FieldType
    decimals: int | Literal["exact"] = 0
    range: tuple[float, float] | None = None
    vocabulary: list[str] = []
    use: FieldUse = "features"


class RawFeature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A feature as written in the file."""

    name: str
    field: str | None = None
    category: str | None = None
    calendar: Calendar | None = None
    entity: str | None = None
    aggregate: Aggregate | None = None
    of: str | None = None
    time_since_last: str | None = None
    table: str | None = None
    column: str | None = None
    hook: str | None = None
    window: str | None = None
    ratio: tuple[str, str] | None = None
    difference: tuple[str, str] | None = None
    rate_of_change: tuple[str, str] | None = None
    default: float = 0.0
    range: tuple[float, float] | None = None
    essential: bool = False
    max_age: str = "0s"

    @property
    def inputs(self) -> tuple[str, str] | None:
        """Return the names of the two inputs of a derived feature."""
        return self.ratio or self.difference or self.rate_of_change


class RawFeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requirements on one feed."""

    max_age: str


class RawSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file as written."""

    version: int
    product: str
    features: list[RawFeature]
    entities: dict[str, RawEntity] = {}
    amount: bool = True
    lateness: str = "1d"
    # Another number means another set of values, which must be loaded again.
    generation: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    aliases: dict[str, list[str]] = {}
    fields: list[RawField] = []
    tables: dict[str, RawTable] = {}
    feeds: dict[Feed, RawFeed] = {}
    hook: str | None = None


def duration_us(text: str) -> int:
    """
    Convert a duration such as `7d`, `5m` or `30s` to microseconds.

    Raises:
        ValueError: The text is not digits and one of s, m, h, d.
    """
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if not match:
        raise ValueError(f"{text!r} is not a duration like 30d, 12h, 5m or 10s")
    return int(match[1]) * _UNIT_US[match[2]]


def parse_document(path: Path) -> RawSpec:
    """
    Read a features.yaml; its values may still be invalid.

    Raises:
        SpecError: The file cannot be read, a key is unknown, missing or duplicate, or a
            value is of another type; the message names the file and the key.
    """
    try:
        content = path.read_bytes()
        _refuse_repeated_keys(content, path)
        return msgspec.yaml.decode(content, type=RawSpec)
    except OSError as exc:
        raise SpecError(path, f"cannot be read: {exc.strerror}") from exc
    except (yaml.YAMLError, msgspec.MsgspecError, ValueError) as exc:
        raise SpecError(path, " ".join(str(exc).split())) from exc


def _refuse_repeated_keys(content: bytes, path: Path) -> None:
    """Refuse duplicate keys, which a YAML reader accepts: it takes the last of two."""
    root = yaml.compose(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # an alias may refer to a node that contains it
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        if isinstance(node, yaml.MappingNode):
            names = set()
            for key, value in node.value:
                if key.value in names:
                    line = f"line {key.start_mark.line + 1}"
                    raise SpecError(path, f"{key.value!r} appears twice", where=line)
                if isinstance(key, yaml.ScalarNode):
                    names.add(key.value)
                waiting.append(value)
