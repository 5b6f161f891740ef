"""features.yaml as written: its keys, and what each value must be by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NoReturn

import msgspec
import yaml

from tollgate.errors import SpecError
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

SPEC_VERSION = 1
MAX_ENTRIES = 1024  # per entity value; longer ones cost 190 µs an update and more
MAX_SPAN_DAYS = 3653  # ten years: times to live and search keys hold far more
LABEL = "label"
LABEL_TIME = "label_time"

Aggregate = Literal["count", "sum", "mean", "flagged", "share"]
Calendar = Literal["weekend", "night"]

_UNIT_US = {"s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}
_MAX_SPAN_US = MAX_SPAN_DAYS * _UNIT_US["d"]
_MAX_DEFAULT = 3.4028234e38  # the vector is float32
# Names become columns, tensors and fields, and travel joined by commas.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_OTHER_COLUMNS = (TRANSACTION_ID, AMOUNT, EVENT_TIME, LABEL, LABEL_TIME)
_TRANSACTION = TRANSACTION_ID.removesuffix("_id")  # its id lies beside the entities'


class RawEntity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entity as written in the file."""

    key: str
    hop: int | str = 0
    delay: str = "0s"
    cap: int = MAX_ENTRIES


class RawFeature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One feature as written in the file."""

    name: str
    field: str | None = None
    calendar: Calendar | None = None
    entity: str | None = None
    aggregate: Aggregate | None = None
    window: str | None = None
    default: float = 0.0


class RawSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file as written."""

    version: int
    product: str
    entities: dict[str, RawEntity]
    features: list[RawFeature]
    lateness: str = "1d"
    aliases: dict[str, list[str]] = {}


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


def read_document(path: Path) -> RawSpec:
    """
    Read a features.yaml whose every value is sound by itself.

    Raises:
        SpecError: It cannot be read, a key is unknown, missing or there twice, or a
            value is not what its key needs; the message names the file and the key.
    """
    try:
        content = path.read_bytes()
        _refuse_repeated_keys(content, path)
        raw = msgspec.yaml.decode(content, type=RawSpec)
    except OSError as exc:
        raise SpecError(path, f"cannot be read: {exc.strerror}") from exc
    except (yaml.YAMLError, msgspec.MsgspecError, ValueError) as exc:
        raise SpecError(path, " ".join(str(exc).split())) from exc
    _Values(path).check(raw)
    return raw


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


class _Values:
    """Checks each value of one file by itself."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, raw: RawSpec) -> None:
        """Check all values; the first wrong one is refused."""
        if raw.version != SPEC_VERSION:
            self._refuse("version", f"{raw.version} is not {SPEC_VERSION}")
        self._duration("lateness", raw.lateness)
        for part in ("entities", "features"):
            if not getattr(raw, part):
                self._refuse(part, "is empty")
        for name, entity in raw.entities.items():
            self._entity(name, entity)
        for feature in raw.features:
            self._feature(feature)

    def _entity(self, name: str, entity: RawEntity) -> None:
        where = f"entities.{name}"
        self._name("entities", name)
        if name == _TRANSACTION:
            self._refuse(where, f"its ids would be {TRANSACTION_ID}, which are others")
        self._name(f"{where}.key", entity.key)
        if entity.key in _OTHER_COLUMNS:
            self._refuse(f"{where}.key", f"{entity.key!r} is another column's name")
        if entity.hop not in (0, "0", "0s"):
            problem = f"{entity.hop} is not supported: only exact windows (hop: 0) are"
            self._refuse(f"{where}.hop", problem)
        if not 1 <= entity.cap <= MAX_ENTRIES:
            problem = f"{entity.cap} is not within 1 … {MAX_ENTRIES}"
            self._refuse(f"{where}.cap", problem)
        self._duration(f"{where}.delay", entity.delay)

    def _feature(self, feature: RawFeature) -> None:
        where = f"features.{feature.name}"
        self._name("features", feature.name)
        kinds = [feature.field, feature.calendar, feature.aggregate]
        if sum(kind is not None for kind in kinds) != 1:
            self._refuse(where, "needs exactly one of field, calendar, aggregate")
        if feature.field is not None and feature.field != AMOUNT:
            problem = f"{feature.field!r} is not a number of the request"
            self._refuse(f"{where}.field", problem)
        for key in ("entity", "window"):
            value = getattr(feature, key)
            if feature.aggregate is None and value is not None:
                self._refuse(f"{where}.{key}", "only an aggregate has one")
            if feature.aggregate is not None and value is None:
                self._refuse(where, f"an aggregate needs its {key}")
        if feature.window is not None:
            self._duration(f"{where}.window", feature.window, least_us=1)
        if not abs(feature.default) <= _MAX_DEFAULT:
            self._refuse(
                f"{where}.default", f"{feature.default} is not a finite float32"
            )

    def _name(self, where: str, name: str) -> None:
        if not _NAME.fullmatch(name):
            problem = "is not a name of up to 64 letters, digits and underscores"
            self._refuse(where, f"{name!r:.80} {problem}")

    def _duration(self, where: str, text: str, *, least_us: int = 0) -> None:
        try:
            value_us = duration_us(text)
        except ValueError as exc:
            self._refuse(where, str(exc))
        if value_us < least_us:
            self._refuse(where, f"{text} holds nothing")
        if value_us > _MAX_SPAN_US:
            self._refuse(where, f"{text} is over {MAX_SPAN_DAYS}d")

    def _refuse(self, where: str, problem: str) -> NoReturn:
        raise SpecError(self._path, problem, where=where)
