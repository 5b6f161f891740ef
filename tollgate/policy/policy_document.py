"""Read the keys of policy.yaml as written. docs/policy.md explains each key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from tollgate.policy.lines import Place, Source, read_as

POLICY_VERSION = 1
POLICY_FILE = "policy.yaml"

Level = Literal["approve", "review", "decline"]

_DURATION = re.compile(r"(\d{1,6})([smhd])\Z")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class RawScore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A score other than one unchanged column: one of `of`, `weights`."""

    of: str | None = None
    weights: dict[str, float] = {}
    decimals: int | None = None


class RawThresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Scores at or above which a purchase is reviewed or declined.

    Without `decline` no score declines one.
    """

    review: float
    decline: float | None = None


class RawFallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decision without a usable score, and when a score is unusable."""

    model_output: Level
    sum_within: float | None = None


class RawSegmentFallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decision without a usable score in one segment."""

    model_output: Level


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
    at_least: Level | None = None
    fallback: Level | None = None


class RawRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule."""

    name: str
    owner: str
    when: dict[str, Any]
    code: str
    at_least: Level | None = None
    at_most: Level | None = None
    stop: bool = False
    segments: list[str] | None = None
    since: str | None = msgspec.field(name="from", default=None)
    until: str | None = None


class RawJournal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the policy for the journal."""

    consent: str


class RawIdempotency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time that a decision is valid for its transaction id."""

    window: str = "10m"


class RawNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a notice to a person who was refused."""

    most: int = 4
    never: list[str] = []


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
    segments: list[RawSegment] = []
    lists: list[RawList] = []
    degraded: dict[str, Literal["none"] | RawMeaning] = {}
    contributions: dict[str, str] = {}
    notice: RawNotice | None = None
    sensitive: list[str] = []
    journal: RawJournal | None = None
    idempotency: RawIdempotency = RawIdempotency()


class Document(msgspec.Struct, frozen=True):
    """The content of a policy.yaml, with the lines of its keys."""

    raw: RawPolicy
    source: Source

    def refuse(self, place: Place, problem: str) -> NoReturn:
        """Raise the error that names file, line and key."""
        raise self.source.refuse(place, problem)


def read_document(path: Path) -> Document:
    """
    Read a policy.yaml as it is written; does not check that it is consistent.

    Raises:
        PolicyError: It cannot be read, or has other keys or types.
    """
    source = Source(path)
    return Document(read_as(source, RawPolicy), source)


def duration_s(text: str) -> int | None:
    """Read `90s`, `10m`, `24h` or `7d` as seconds; None for any other text."""
    found = _DURATION.match(text)
    return int(found[1]) * _UNIT_S[found[2]] if found else None
