"""
Define the keys of features.yaml, and check each value independently of the others.

docs/features.md explains each key.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import msgspec
import yaml

from tollgate.errors import SpecError
from tollgate.features.spec.tile_form import HOPS_US, hop_us
from tollgate.schema import AMOUNT, EVENT_TIME, EXACT, TRANSACTION, TRANSACTION_ID
from tollgate.schema import FieldType as FieldType

SPEC_VERSION = 1
MAX_ENTRIES = 1024  # events per value; larger ones cost 190 µs an update and more
MAX_SPAN_DAYS = 3653  # ten years: TTLs and search keys have room for far more
LABEL = "label"
LABEL_TIME = "label_time"
VALID_FROM = "valid_from"  # column of a table

Aggregate = Literal[
    "count",
    "sum",
    "mean",
    "min",
    "max",
    "last",
    "distinct",
    "approx_distinct",
    "flagged",
    "share",
    "std",
    "slope",
    "change",
    "ewm",
    "sessions",
]
Calendar = Literal["weekend", "night"]
FieldUse = Literal["features", "policy", "events"]
Feed = Literal["purchases", "labels"]

_UNIT_US = {"s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}


class RawEntity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entity as written in the file."""

    key: str
    hop: int | str = 0
    delay: str = "0s"
    cap: int | None = None
    rate: str | None = None


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
    nth: int | None = None
    half_life: str | None = None
    gap: str | None = None
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


class RawHistory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest events to read of an entity, as written in the file."""

    entity: str
    of: list[str]
    most: int


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
    history: RawHistory | None = None
    hook: str | None = None


_PARTS = {
    "entities": RawEntity,
    "tables": RawTable,
    "fields": RawField,
    "features": RawFeature,
    "feeds": RawFeed,
}


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


def rate_per_s(text: str) -> float:
    """
    Convert a rate of events such as `40/d` or `0.5/s` to events per second.

    Raises:
        ValueError: The text is not a number above 0, a slash and one of s, m, h, d.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)/([smhd])", text)
    if not match or not float(match[1]):
        raise ValueError(f"{text!r} is not a rate like 40/d, 12.5/h or 3/s")
    return float(match[1]) * _UNIT_US["s"] / _UNIT_US[match[2]]


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
    except msgspec.ValidationError as exc:
        problem, where = _misfit(content) or (str(exc), "")
        raise SpecError(path, problem, where=where) from exc
    except (yaml.YAMLError, msgspec.MsgspecError, ValueError) as exc:
        raise SpecError(path, " ".join(str(exc).split())) from exc


def _misfit(content: bytes) -> tuple[str, str] | None:
    """
    Find the first entity, table, field or feature that is not of its type.

    Returns:
        The problem, and the place such as `entities.customer.rate`.
    """
    document = msgspec.yaml.decode(content)
    for part, kind in _PARTS.items():
        items = document.get(part) if isinstance(document, dict) else None
        if isinstance(items, list):
            named = (one for one in items if isinstance(one, dict))
            items = {str(one.get("name", "")): one for one in named}
        for name, one in items.items() if isinstance(items, dict) else ():
            try:
                msgspec.convert(one, kind)
            except msgspec.ValidationError as exc:
                problem, _, key = str(exc).partition(" - at `$")
                where = f"{part}.{name}" if name else part
                return problem, where + key.rstrip("`")
    return None


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


MAX_HISTORY = 256  # newest events that a row reads of its entity
MAX_DECIMALS = 4
MAX_SCALED = 10**12  # in units of the last decimal: sums stay exact doubles
MAX_VOCABULARY = 10_000
MAX_TEXT_BYTES = 128  # longest word of a category

_MAX_SPAN_US = duration_us(f"{MAX_SPAN_DAYS}d")
_MAX_DEFAULT = 3.4028234e38  # the vector is float32
# Names become columns, tensors and fields, and travel joined by commas.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_OTHER_COLUMNS = (TRANSACTION_ID, AMOUNT, EVENT_TIME, LABEL, LABEL_TIME)
_KINDS = (
    "field",
    "category",
    "calendar",
    "aggregate",
    "time_since_last",
    "table",
    "ratio",
    "difference",
    "rate_of_change",
    "hook",
)
# These may be passed to the model as NaN.
_OPEN_KINDS = ("field", "category", "ratio", "difference", "hook")
OF_NUMBER = ("sum", "mean", "min", "max", "last", "std", "slope", "change", "ewm")

OF_VALUE = ("distinct", "approx_distinct")  # aggregates of values of any type
OF_NTH = {"last": 1, "change": 2}  # aggregates with `nth`, and its least value


def largest_number(decimals: int | None) -> float:
    """Return the largest magnitude of a field; `decimals` is None for an exact one."""
    return _MAX_DEFAULT if decimals is None else MAX_SCALED / 10**decimals


def read_document(path: Path) -> RawSpec:
    """
    Read a features.yaml and check each value independently.

    Raises:
        SpecError: The file cannot be read, a key is unknown, missing or duplicate, or a
            value does not fit its key; the message names the file and the key.
    """
    raw = parse_document(path)
    _Values(path).check(raw)
    return raw


class _Values:
    """Check each value of one file independently."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, raw: RawSpec) -> None:
        """Check all values; refuse the first wrong one."""
        if raw.version != SPEC_VERSION:
            self._refuse("version", f"{raw.version} is not {SPEC_VERSION}")
        self._duration("lateness", raw.lateness)
        if not raw.features:
            self._refuse("features", "is empty")
        for part in () if raw.entities else ("tables", "feeds"):
            if getattr(raw, part):
                self._refuse(part, "there are no entities that it could be of")
        for name, entity in raw.entities.items():
            self._entity(name, entity)
        for field in raw.fields:
            self._field(field)
        for name, table in raw.tables.items():
            self._table(name, table)
        for feature in raw.features:
            self._feature(feature)
        for feed, wanted in raw.feeds.items():
            self._duration(f"feeds.{feed}.max_age", wanted.max_age, least_us=1)
        if raw.history is not None:
            self._history(raw.history)

    def _entity(self, name: str, entity: RawEntity) -> None:
        where = f"entities.{name}"
        self._name("entities", name)
        if name == TRANSACTION:  # a request has its id next to the entities'
            self._refuse(where, f"its ids would be {TRANSACTION_ID}, which are others")
        self._name(f"{where}.key", entity.key)
        if entity.key in _OTHER_COLUMNS:
            self._refuse(f"{where}.key", f"{entity.key!r} is another column's name")
        if hop_us(entity.hop) is None:
            widths = ", ".join(HOPS_US)
            problem = f"{entity.hop} is none of 0, {widths} and auto"
            self._refuse(f"{where}.hop", problem)
        if entity.cap is not None and not 1 <= entity.cap <= MAX_ENTRIES:
            problem = f"{entity.cap} is not within 1 … {MAX_ENTRIES}"
            self._refuse(f"{where}.cap", problem)
        self._duration(f"{where}.delay", entity.delay)
        if entity.rate is not None:
            try:
                rate_per_s(entity.rate)
            except ValueError as error:
                self._refuse(f"{where}.rate", str(error))

    def _history(self, history: RawHistory) -> None:
        if not history.of:
            self._refuse("history.of", "is empty")
        for name in history.of:
            if history.of.count(name) > 1:
                self._refuse("history.of", f"{name!r} appears twice")
        if not 1 <= history.most <= MAX_HISTORY:
            problem = f"{history.most} is not within 1 … {MAX_HISTORY}"
            self._refuse("history.most", problem)

    def _table(self, name: str, table: RawTable) -> None:
        self._name("tables", name)
        self._duration(f"tables.{name}.max_age", table.max_age)
        self._duration(f"tables.{name}.refresh", table.refresh)

    def _field(self, field: RawField) -> None:
        where = f"fields.{field.name}"
        self._name("fields", field.name)
        if field.name in _OTHER_COLUMNS:
            self._refuse(where, f"{field.name!r} is another column's name")
        if field.type == "category":
            if field.decimals or field.range:
                self._refuse(where, "only a number has decimals and a range")
            self._vocabulary(f"{where}.vocabulary", field.vocabulary)
            return
        if field.vocabulary:
            self._refuse(f"{where}.vocabulary", "only a category has one")
        decimals = None if field.decimals == EXACT else int(field.decimals)
        if decimals is not None and not 0 <= decimals <= MAX_DECIMALS:
            problem = f"{decimals} is not within 0 … {MAX_DECIMALS}, nor {EXACT}"
            self._refuse(f"{where}.decimals", problem)
        self._range(f"{where}.range", field.range, most=largest_number(decimals))

    def _vocabulary(self, where: str, words: list[str]) -> None:
        if len(words) > MAX_VOCABULARY:
            self._refuse(where, f"{len(words)} words, {MAX_VOCABULARY} are allowed")
        seen = set()
        for word in words:
            if not 1 <= len(word.encode()) <= MAX_TEXT_BYTES:
                problem = f"{word!r:.40} is not 1 to {MAX_TEXT_BYTES} bytes long"
                self._refuse(where, problem)
            if word in seen:
                self._refuse(where, f"{word!r} appears twice")
            seen.add(word)

    def _feature(self, feature: RawFeature) -> None:
        where = f"features.{feature.name}"
        self._name("features", feature.name)
        kinds = [kind for kind in _KINDS if getattr(feature, kind) is not None]
        if len(kinds) != 1:
            self._refuse(where, f"needs exactly one of {', '.join(_KINDS)}")
        self._windowed(where, feature)
        self._nth(where, feature)
        self._durations(where, feature)
        self._table_feature(where, feature)
        self._of(where, feature)
        self._default(where, feature)
        codes_alone = not feature.default or math.isnan(feature.default)
        if feature.category is not None and (feature.range or not codes_alone):
            problem = "a category has codes of its own: no range, no default but .nan"
            self._refuse(where, problem)
        self._duration(f"{where}.max_age", feature.max_age)
        if feature.essential and kinds[0] == "calendar":
            self._refuse(f"{where}.essential", "a calendar is never missing")

    def _default(self, where: str, feature: RawFeature) -> None:
        """Check the default, and the range that contains it."""
        self._range(f"{where}.range", feature.range, most=_MAX_DEFAULT)
        default = feature.default
        if math.isnan(default) and any(getattr(feature, one) for one in _OPEN_KINDS):
            return
        if not abs(default) <= _MAX_DEFAULT:
            problem = f"{default} is not a finite float32"
            if math.isnan(default):
                problem = f"only {', '.join(_OPEN_KINDS)} may be .nan"
            self._refuse(f"{where}.default", problem)
        if feature.range and not feature.range[0] <= default <= feature.range[1]:
            problem = f"{default:g} is outside of its own range"
            self._refuse(f"{where}.default", problem)

    def _windowed(self, where: str, feature: RawFeature) -> None:
        """Check the keys that only features over a window have."""
        aggregate = feature.aggregate is not None
        windowed = aggregate or feature.time_since_last is not None
        for key, value, wanted in (
            ("entity", feature.entity, aggregate),
            ("window", feature.window, windowed),
        ):
            if value is not None and not wanted:
                self._refuse(f"{where}.{key}", "only an aggregate has one")
            if value is None and wanted:
                kind = "an aggregate" if aggregate else "time_since_last"
                self._refuse(where, f"{kind} needs its {key}")
        if feature.window is not None:
            self._duration(f"{where}.window", feature.window, least_us=1)

    def _nth(self, where: str, feature: RawFeature) -> None:
        if feature.nth is None:
            return
        if feature.aggregate not in OF_NTH:
            self._refuse(f"{where}.nth", f"only {' and '.join(OF_NTH)} have one")
        least = OF_NTH[feature.aggregate]
        if not least <= feature.nth <= MAX_ENTRIES:
            problem = f"{feature.nth} is not within {least} … {MAX_ENTRIES}"
            self._refuse(f"{where}.nth", problem)

    def _durations(self, where: str, feature: RawFeature) -> None:
        """Check the durations that only one aggregate has."""
        for key, aggregate in (("half_life", "ewm"), ("gap", "sessions")):
            value = getattr(feature, key)
            if value is None and feature.aggregate == aggregate:
                self._refuse(where, f"{aggregate} needs its {key}")
            if value is not None:
                if feature.aggregate != aggregate:
                    self._refuse(f"{where}.{key}", f"only {aggregate} has one")
                self._duration(f"{where}.{key}", value, least_us=1)

    def _table_feature(self, where: str, feature: RawFeature) -> None:
        """Check the keys that only features from a table have."""
        if (feature.table is None) != (feature.column is None):
            self._refuse(where, "table and column go together")
        if feature.column is not None:
            self._name(f"{where}.column", feature.column)
            if feature.column in (*_OTHER_COLUMNS, VALID_FROM):
                problem = f"{feature.column!r} is another column's name"
                self._refuse(f"{where}.column", problem)
        if feature.table is not None and feature.max_age != "0s":
            self._refuse(f"{where}.max_age", "its table has one")

    def _of(self, where: str, feature: RawFeature) -> None:
        if feature.of is None:
            if feature.aggregate in OF_VALUE:
                problem = f"{feature.aggregate} needs to know of what: of"
                self._refuse(where, problem)
        elif feature.aggregate not in (*OF_NUMBER, *OF_VALUE):
            last = " and ".join(OF_VALUE)
            problem = f"only {', '.join(OF_NUMBER)}, {last} have one"
            self._refuse(f"{where}.of", problem)

    def _range(
        self, where: str, bounds: tuple[float, float] | None, *, most: float
    ) -> None:
        if bounds is None:
            return
        low, high = bounds
        if not -most <= low < high <= most:
            problem = f"[{low:g}, {high:g}] does not ascend within ±{most:g}"
            self._refuse(where, problem)

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
