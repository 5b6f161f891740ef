"""Decide when no server responds in time: by a stored decision or the caller's rule."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tollgate_client.contract import OUTCOMES
from tollgate_client.decisions import Decision
from tollgate_client.errors import InputError
from tollgate_client.inputs import Purchase

_SOURCE = "fallback"


@dataclass(frozen=True, slots=True)
class Band:
    """
    Decision for purchases below an amount.

    Attributes:
        below: Upper bound of the amount, exclusive; in the product's currency, above 0.
        decision: One of the rule's outcomes.
    """

    below: float
    decision: str


@dataclass(frozen=True, slots=True)
class Fallback:
    """
    Decide by amount alone: the first band whose bound the amount lies below.

        Fallback(bands=(Band(below=50, decision="approve"),), otherwise="review")

    Attributes:
        otherwise: Decision for all purchases that no band covers.
        bands: Bands in ascending order of `below`.
        outcomes: Words of the product's decisions, the mildest first, as in its
            policy.yaml. An answer with another word counts as a failure of the server.

    Raises:
        InputError: The outcomes are not three different words, a decision is none of
            them, or the bands are not ascending; the error names the band.
    """

    otherwise: str
    bands: tuple[Band, ...] = ()
    outcomes: tuple[str, ...] = OUTCOMES

    def __post_init__(self) -> None:
        distinct = set(self.outcomes) - {""}
        if not len(distinct) == len(self.outcomes) == len(OUTCOMES):
            problem = f"{self.outcomes!r} are not three different words"
            raise InputError(_SOURCE, problem, where="outcomes")
        self._check_decision(self.otherwise, where="otherwise")
        last = 0.0
        for place, band in enumerate(self.bands):
            where = f"bands[{place}]"
            self._check_decision(band.decision, where=f"{where}.decision")
            if not last < band.below < math.inf:
                raise InputError(
                    _SOURCE,
                    f"{band.below!r} is not above {last:g}; bands ascend",
                    where=f"{where}.below",
                )
            last = band.below

    def decide(self, amount: float) -> str:
        """Return the decision for an amount."""
        for band in self.bands:
            if amount < band.below:
                return band.decision
        return self.otherwise

    def _check_decision(self, word: str, *, where: str) -> None:
        if word not in self.outcomes:
            problem = f"{word!r} is none of {', '.join(self.outcomes)}"
            raise InputError(_SOURCE, problem, where=where)


def fallback_from(document: Mapping[str, object]) -> Fallback:
    """
    Read a rule from a configuration, such as a section of a YAML file.

        {"bands": [{"below": 50, "decision": "approve"}], "otherwise": "review"}

    Raises:
        InputError: See `Fallback`; also if a key is missing, unknown or of a wrong
            type.
    """
    known = ("otherwise", "bands", "outcomes")
    _check_keys(document, ("otherwise",), known=known, where="")
    bands = _list(document, "bands", default=())
    outcomes = _list(document, "outcomes", default=OUTCOMES)
    return Fallback(
        otherwise=str(document["otherwise"]),
        bands=tuple(_band(band, f"bands[{place}]") for place, band in enumerate(bands)),
        outcomes=tuple(map(str, outcomes)),
    )


def _list(
    document: Mapping[str, object], key: str, *, default: tuple[str, ...]
) -> Sequence[object]:
    found = document.get(key, default)
    if not isinstance(found, (list, tuple)):
        raise InputError(_SOURCE, f"{found!r} is not a list", where=key)
    return found


def _band(document: object, where: str) -> Band:
    if not isinstance(document, Mapping):
        raise InputError(_SOURCE, f"{document!r} is not a band", where=where)
    keys = ("below", "decision")
    _check_keys(document, keys, known=keys, where=f"{where}.")
    below = document["below"]
    if isinstance(below, bool) or not isinstance(below, (int, float)):
        raise InputError(_SOURCE, f"{below!r} is not a number", where=f"{where}.below")
    return Band(below=float(below), decision=str(document["decision"]))


def _check_keys(
    document: Mapping[str, object],
    needed: tuple[str, ...],
    *,
    known: tuple[str, ...],
    where: str,
) -> None:
    for key in needed:
        if key not in document:
            raise InputError(_SOURCE, "is missing", where=f"{where}{key}")
    for key in document:
        if key not in known:
            problem = f"is unknown; known are {', '.join(known)}"
            raise InputError(_SOURCE, problem, where=f"{where}{key}")


class DecisionCache:
    """
    Cache the latest decisions of servers by transaction id; threads may share it.

    Args:
        size: Maximum number of entries; the oldest is evicted first.
        age_s: Maximum age of an entry, seconds. It must not exceed the server's window
            for stored decisions, after which the server would decide again.
        clock: Function that returns monotonic seconds.
    """

    def __init__(self, size: int, *, age_s: float, clock: Callable[[], float]) -> None:
        self._size = size
        self._age_s = age_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[float, tuple[bytes, ...], Decision]] = (
            OrderedDict()
        )

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, purchase: Purchase, decision: Decision) -> None:
        """Store a server's decision; the first decision for a purchase stays."""
        if not self._size or not purchase.transaction_id:
            return
        with self._lock:
            if self._found(purchase) is not None:
                return
            self._known.pop(purchase.transaction_id, None)
            while len(self._known) >= self._size:
                self._known.popitem(last=False)
            entry = (self._clock(), purchase.parts, decision)
            self._known[purchase.transaction_id] = entry

    def recall(self, purchase: Purchase) -> Decision | None:
        """Return the stored decision for the same id and content, unless too old."""
        with self._lock:
            return self._found(purchase)

    def _found(self, purchase: Purchase) -> Decision | None:
        since_s, parts, decision = self._known.get(
            purchase.transaction_id, (0.0, (), None)
        )
        if decision is None or parts != purchase.parts:
            return None
        return decision if self._clock() - since_s <= self._age_s else None
