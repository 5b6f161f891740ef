"""
Read the keys of policy.yaml as written, with the line of every key for error messages.

docs/policy.md explains each key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec
import numpy as np
import yaml

from tollgate.errors import PolicyError
from tollgate.schema import DEFAULT_OUTCOMES, Decision, Outcomes, outcomes_problem

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
        """Build the error for a msgspec message, with line and key, not a path."""
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


POLICY_VERSION = 1
POLICY_FILE = "policy.yaml"

_DURATION = re.compile(r"(\d{1,6})([smhd])\Z")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class RawScore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A score other than one unchanged column: one of `of`, `value`, `weights`.

    `value` is the model's number, in its own unit; `worse` says which end of it is bad.
    """

    of: str | None = None
    value: str | None = None
    worse: Literal["higher", "lower"] | None = None
    weights: dict[str, float] = {}
    decimals: int | None = None


# Outcome -> score from which a purchase gets it; optional for the severest outcome.
RawThresholds = dict[str, float | None]


class RawFallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decision without a usable score, and when a score is unusable."""

    model_output: str
    sum_within: float | None = None


class RawSegmentFallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decision without a usable score in one segment."""

    model_output: str


class RawSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Purchases that have thresholds of their own."""

    name: str
    when: dict[str, Any]
    thresholds: RawThresholds
    fallback: RawSegmentFallback | None = None


class RawList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A set of ids in the store that rules may name."""

    name: str
    of: str
    meaning: Literal["allow", "deny"]


class RawMeaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Effect of a degraded bit on a decision: one of `at_least`, `fallback`."""

    code: str
    at_least: str | None = None
    fallback: str | None = None


class RawRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule."""

    name: str
    owner: str
    when: dict[str, Any]
    code: str
    at_least: str | None = None
    at_most: str | None = None
    before_model: str | None = None
    stop: bool = False
    segments: list[str] | None = None
    since: str | None = msgspec.field(name="from", default=None)
    until: str | None = None


class RawJournal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the policy for the journal."""

    consent: str


class RawIdempotency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time that a decision is valid for its transaction id."""

    window: str | None = None


class RawNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a notice to a person who was refused."""

    most: int = 4
    never: list[str] = []


class RawHysteresis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the levels of an entity's rows over time become the answered ones."""

    entity: str
    of: int
    at_least: int
    hold: str | None = None
    cool_down: str | None = None
    maintenance: str | None = None


class RawDiversity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weight of an item's similarity to the items before it in the list."""

    weight: float


class RawExploration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Random changes of lists, and their propensities."""

    share: float
    pool: int = 10
    first: int = 1
    salt: str = ""


class RawShift(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a rule moves a score: one of `factor`, `offset`."""

    factor: float | None = None
    offset: float | None = None


class RawRankingRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule about items: one of `boost`, `bury`, `pin`, `cap`."""

    name: str
    owner: str
    boost: RawShift | None = None
    bury: RawShift | None = None
    pin: int | None = None
    cap: int | None = None
    items: list[str] = []
    categories: list[str] = []
    when: dict[str, Any] | None = None
    since: str | None = msgspec.field(name="from", default=None)
    until: str | None = None


class RawRanking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the scored items of a request become its list."""

    items: int
    diversity: RawDiversity | None = None
    exploration: RawExploration | None = None
    bought: str | None = None
    seen: str | None = None
    stock: str | None = None
    rules: list[RawRankingRule] = []


class RawPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    version: int
    product: str
    labels: list[str]
    score: str | RawScore
    thresholds: RawThresholds
    fallback: RawFallback
    rules: list[RawRule]
    reasons: dict[str, str]
    outcomes: tuple[str, ...] = DEFAULT_OUTCOMES.words
    segments: list[RawSegment] = []
    lists: list[RawList] = []
    degraded: dict[str, Literal["none"] | RawMeaning] = {}
    contributions: dict[str, str] = {}
    notice: RawNotice | None = None
    sensitive: list[str] = []
    journal: RawJournal | None = None
    idempotency: RawIdempotency = RawIdempotency()
    hysteresis: RawHysteresis | None = None
    ranking: RawRanking | None = None


class Document(msgspec.Struct, frozen=True):
    """The content of a policy.yaml, with the lines of its keys."""

    raw: RawPolicy
    source: Source
    outcomes: Outcomes

    def refuse(self, place: Place, problem: str) -> NoReturn:
        """Raise the error that names file, line and key."""
        raise self.source.refuse(place, problem)

    def level(self, word: str, place: Place) -> Decision:
        """
        Return the level of an outcome.

        Raises:
            PolicyError: It is none of the product's; the message lists these.
        """
        words = self.outcomes.words
        if word not in words:
            self.refuse(place, f"{word!r} is none of {', '.join(words)}")
        return Decision(words.index(word))


def read_document(path: Path) -> Document:
    """
    Read a policy.yaml as it is written; does not check that it is consistent.

    Raises:
        PolicyError: It cannot be read, has other keys or types, or outcomes that no
            product can have.
    """
    source = Source(path)
    raw = read_as(source, RawPolicy)
    problem = outcomes_problem(raw.outcomes)
    if problem:
        raise source.refuse(("outcomes",), problem)
    mildest, middle, severest = raw.outcomes
    return Document(raw, source, Outcomes((mildest, middle, severest)))


def duration_s(text: str) -> int | None:
    """Read `90s`, `10m`, `24h` or `7d` as seconds; None for any other text."""
    found = _DURATION.match(text)
    return int(found[1]) * _UNIT_S[found[2]] if found else None


_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(T\d\d:\d\d(:\d\d(\.\d{1,6})?)?Z)?\Z")


def read_time_us(text: str) -> int | None:
    """Read `2026-03-01` or `2026-03-01T06:00:00Z` as µs since the epoch; else None."""
    if not _TIME.match(text):
        return None
    try:
        return int(np.datetime64(text.removesuffix("Z"), "us").astype(np.int64))
    except ValueError:
        return None


def rule_times(
    document: Document, since: str | None, until: str | None, place: Place
) -> tuple[int | None, int | None]:
    """
    Read the start and end times of a rule, µs; None for none.

    Args:
        place: The rule.

    Raises:
        PolicyError: One is no time, or the end is not after the start.
    """
    found = []
    for key, text in (("from", since), ("until", until)):
        time_us = None if text is None else read_time_us(text)
        if text is not None and time_us is None:
            wanted = "2026-03-01 or 2026-03-01T06:00:00Z"
            document.refuse((*place, key), f"{text!r} is no time such as {wanted}")
        found.append(time_us)
    since_us, until_us = found
    if since_us is not None and until_us is not None and until_us <= since_us:
        problem = f"{until} is not after {since}: it is never in force"
        document.refuse((*place, "until"), problem)
    return since_us, until_us
