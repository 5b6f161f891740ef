"""features.yaml as written: its keys. What each means: docs/features.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml

from tollgate.errors import SpecError
from tollgate.schema import FieldType as FieldType

SPEC_VERSION = 1
MAX_ENTRIES = 1024  # per entity value; longer ones cost 190 µs an update and more
MAX_SPAN_DAYS = 3653  # ten years: times to live and search keys hold far more
LABEL = "label"
LABEL_TIME = "label_time"
VALID_FROM = "valid_from"  # of a table's row

Aggregate = Literal[
    "count", "sum", "mean", "min", "max", "last", "distinct", "flagged", "share"
]
Calendar = Literal["weekend", "night"]
FieldUse = Literal["features", "policy"]
Feed = Literal["purchases", "labels"]

_UNIT_US = {"s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}


class RawEntity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entity as written in the file."""

    key: str
    hop: int | str = 0
    delay: str = "0s"
    cap: int = MAX_ENTRIES


class RawTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table as written in the file."""

    entity: str
    max_age: str = "0s"
    refresh: str = "0s"


class RawField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One declared request field as written in the file."""

    name: str
    type: FieldType
    decimals: int | Literal["exact"] = 0
    range: tuple[float, float] | None = None
    vocabulary: list[str] = []
    use: FieldUse = "features"


class RawFeature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One feature as written in the file."""

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
        """Name the two features a derived one is made of."""
        return self.ratio or self.difference or self.rate_of_change


class RawFeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked of one feed."""

    max_age: str


class RawSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file as written."""

    version: int
    product: str
    features: list[RawFeature]
    entities: dict[str, RawEntity] = {}
    amount: bool = True
    lateness: str = "1d"
    # Another number is another set of values, to be filled anew.
    generation: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    aliases: dict[str, list[str]] = {}
    fields: list[RawField] = []
    tables: dict[str, RawTable] = {}
    feeds: dict[Feed, RawFeed] = {}
    hook: str | None = None


def duration_us(text: str) -> int:
    """
    Turn a duration such as `7d`, `5m` or `30s` into microseconds.

    Raises:
        ValueError: The text is not digits and one of s, m, h, d.
    """
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if not match:
        raise ValueError(f"{text!r} is not a duration like 30d, 12h, 5m or 10s")
    return int(match[1]) * _UNIT_US[match[2]]


def parse_document(path: Path) -> RawSpec:
    """
    Read a features.yaml; its values may still be unsound.

    Raises:
        SpecError: It cannot be read, a key is unknown, missing or there twice, or a
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
    """Refuse what a YAML reader forgives: of two equal keys it takes the last."""
    root = yaml.compose(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # an alias may lead back to where it stands
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
