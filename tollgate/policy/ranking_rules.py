"""
Define the section `ranking` of a policy: how scored items become a list.

The section is data. The values stand here, so that the policy needs nothing of the
ranking; tollgate/ranking/rank.py applies them. docs/ranking.md explains each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.policy.conditions import Condition, Names
from tollgate.policy.decision_tables import ConditionTable, Criterion, RowFacts
from tollgate.policy.policy_document import (
    Document,
    Place,
    RawExploration,
    RawRanking,
    RawRankingRule,
    RawShift,
    duration_s,
    rule_times,
)
from tollgate.schema import (
    ITEM_SEPARATOR,
    MAX_ID_BYTES,
    MAX_LIST_SIZE,
    Degraded,
)

U64 = npt.NDArray[np.uint64]

Action = Literal["boost", "bury", "pin", "cap"]

_MAX_RULES = 64  # bits of a request's rules
_MAX_POOL = 100
_MAX_FACTOR, _MAX_OFFSET = 1_000.0, 1e6
_MAX_TIME_S = 365 * 86_400


class Exploration(msgspec.Struct, frozen=True):
    """
    Random changes of a list, so that other rankings can be judged by its records.

    Attributes:
        share: Probability that a position is explored, above 0 and at most 1.
        pool: Number of next best items that an explored position may show.
        first: First position that may be explored; 1 is the first of the list.
        salt: Text that is part of each request's seed; another one draws again.
    """

    share: float
    pool: int
    first: int
    salt: str


class RankingRule(msgspec.Struct, frozen=True):
    """
    A rule about items, as data.

    Attributes:
        name, owner: Name of the rule, and the person or team responsible for it.
        action: Its effect.
        factor, offset: Of boost and bury: multiply and add, or divide and subtract.
        number: Of pin: the position, 1 is the first. Of cap: most items of a category.
        items: Ids of the items that it is about.
        categories: Names of the categories that it is about; none for a cap of each.
    """

    name: str
    owner: str
    action: Action
    factor: float = 1.0
    offset: float = 0.0
    number: int = 0
    items: tuple[bytes, ...] = ()
    categories: tuple[str, ...] = ()


class RankingRules(msgspec.Struct, frozen=True, eq=False):
    """
    The section `ranking` of a policy, compiled.

    Attributes:
        items: Number of items if a request names none; 1 to MAX_LIST_SIZE.
        diversity: Weight of the similarity to the items before, within [0, 1].
        exploration: Random changes; None for a list without any.
        bought_s: Time that a bought item is not shown again, s; 0 for no time.
        seen_s: Time that an item which was viewed or put into the cart is not shown
            again, s; 0 for no time.
        stock: Name of the list of items out of stock; empty if all are in stock.
        rules: Rules in the order in which they are applied.
        tables: Conditions of the rules.
    """

    items: int
    diversity: float
    exploration: Exploration | None
    bought_s: int
    seen_s: int
    stock: str
    rules: tuple[RankingRule, ...]
    tables: ConditionTable

    def in_force(self, facts: RowFacts) -> U64:
        """
        Find the rules whose conditions hold; bit i is the i-th rule; uint64 [N].

        Args:
            facts: N rows; the probabilities are not read.
        """
        rows = len(facts.cents)
        if not self.rules:
            return np.zeros(rows, np.uint64)
        _, held = self.tables.match(
            facts,
            score=np.full(rows, np.nan),
            scored=np.zeros(rows, np.bool_),
            degraded=facts.degraded,
        )
        bits = np.uint64(1) << np.arange(len(self.rules), dtype=np.uint64)
        found: U64 = (held * bits).sum(axis=1, dtype=np.uint64)
        return found


# Read the section of the policy.


def read_ranking(document: Document, raw: RawRanking, *, names: Names) -> RankingRules:
    """
    Read the section.

    Args:
        raw: The section as written.
        names: Variables that the conditions of its rules may name.

    Raises:
        PolicyError: A number is outside of its range, a rule has no effect, or a name
            is invalid or appears twice.
    """
    return _Section(document, names).read(raw)


class _Section:
    def __init__(self, document: Document, names: Names) -> None:
        self._document = document
        self._names = names

    def read(self, raw: RawRanking) -> RankingRules:
        if not 1 <= raw.items <= MAX_LIST_SIZE:
            self._refuse(("items",), f"{raw.items} is not within 1 … {MAX_LIST_SIZE}")
        weight = 0.0 if raw.diversity is None else raw.diversity.weight
        if not 0 <= weight <= 1:
            self._refuse(("diversity", "weight"), f"{weight} is not within 0 … 1")
        if len(raw.rules) > _MAX_RULES:
            self._refuse(("rules", _MAX_RULES), f"{_MAX_RULES} rules are allowed")
        names = [one.name for one in raw.rules]
        for at, name in enumerate(names):
            if name in names[:at]:
                self._refuse(("rules", at), "appears twice")
        return RankingRules(
            items=raw.items,
            diversity=float(weight),
            exploration=self._exploration(raw.exploration),
            bought_s=self._time_s(raw.bought, ("bought",), "30d"),
            seen_s=self._time_s(raw.seen, ("seen",), "1h"),
            stock=self._stock(raw.stock),
            rules=tuple(self._rule(one, at) for at, one in enumerate(raw.rules)),
            tables=ConditionTable(
                [], [self._criterion(one, at) for at, one in enumerate(raw.rules)]
            ),
        )

    def _exploration(self, raw: RawExploration | None) -> Exploration | None:
        if raw is None:
            return None
        place: Place = ("exploration",)
        if not 0 < raw.share <= 1:
            problem = f"{raw.share} is not within 0 … 1; leave exploration out for none"
            self._refuse((*place, "share"), problem)
        if not 0 <= raw.pool <= _MAX_POOL:
            problem = f"{raw.pool} is not within 0 … {_MAX_POOL}"
            self._refuse((*place, "pool"), problem)
        if not 1 <= raw.first <= MAX_LIST_SIZE:
            problem = f"{raw.first} is not within 1 … {MAX_LIST_SIZE}"
            self._refuse((*place, "first"), problem)
        return Exploration(float(raw.share), raw.pool, raw.first, raw.salt)

    def _stock(self, name: str | None) -> str:
        if name is None:
            return ""
        self._names.require_list_name(name, ("ranking", "stock"))
        return name

    def _time_s(self, text: str | None, place: Place, example: str) -> int:
        if text is None:
            return 0
        found = duration_s(text)
        if not found:
            problem = f"{text!r} is no time such as {example}"
            self._refuse(place, f"{problem}; leave the key out for none")
        if found > _MAX_TIME_S:
            self._refuse(place, f"{text} is more than {_MAX_TIME_S // 86_400}d")
        return found

    def _rule(self, raw: RawRankingRule, at: int) -> RankingRule:
        place: Place = ("rules", at)
        effects = {
            "boost": raw.boost,
            "bury": raw.bury,
            "pin": raw.pin,
            "cap": raw.cap,
        }
        given = [key for key, value in effects.items() if value is not None]
        if len(given) != 1:
            self._refuse(place, f"needs exactly one of {', '.join(effects)}")
        items = self._items(raw.items, (*place, "items"))
        for category in raw.categories:
            if not category:
                self._refuse((*place, "categories"), "a category is empty")
        shift = raw.boost if raw.boost is not None else raw.bury
        factor, offset, number = 1.0, 0.0, 0
        action: Action
        if shift is not None:
            action = "boost" if raw.boost is not None else "bury"
            factor, offset = self._shift(shift, (*place, action))
            if not items and not raw.categories:
                self._refuse(place, "names neither items nor categories")
        elif raw.pin is not None:
            action, number = "pin", raw.pin
            if not 1 <= raw.pin <= MAX_LIST_SIZE:
                problem = f"{raw.pin} is not within 1 … {MAX_LIST_SIZE}"
                self._refuse((*place, "pin"), problem)
            if len(items) != 1 or raw.categories:
                self._refuse(place, "pins exactly one item, and no category")
        else:
            action, number = "cap", raw.cap or 0
            if not 1 <= number <= MAX_LIST_SIZE:
                problem = f"{number} is not within 1 … {MAX_LIST_SIZE}"
                self._refuse((*place, "cap"), problem)
            if items:
                self._refuse((*place, "items"), "a cap is of categories")
        return RankingRule(
            name=raw.name,
            owner=raw.owner,
            action=action,
            factor=factor,
            offset=offset,
            number=number,
            items=items,
            categories=tuple(dict.fromkeys(raw.categories)),
        )

    def _shift(self, raw: RawShift, place: Place) -> tuple[float, float]:
        """Read a factor above 1 or an offset above 0."""
        if (raw.factor is None) == (raw.offset is None):
            self._refuse(place, "needs exactly one of factor, offset")
        if raw.factor is not None:
            if not 1 < raw.factor <= _MAX_FACTOR:
                problem = f"{raw.factor} is not above 1 and at most {_MAX_FACTOR:g}"
                self._refuse((*place, "factor"), problem)
            return float(raw.factor), 0.0
        offset = raw.offset or 0.0
        if not 0 < offset <= _MAX_OFFSET:
            problem = f"{offset} is not above 0 and at most {_MAX_OFFSET:g}"
            self._refuse((*place, "offset"), problem)
        return 1.0, float(offset)

    def _items(self, texts: Sequence[str], place: Place) -> tuple[bytes, ...]:
        found = []
        for text in texts:
            name = text.encode()
            if not 0 < len(name) <= MAX_ID_BYTES or ITEM_SEPARATOR in text:
                problem = (
                    f"{text!r} is no item id: 1 to {MAX_ID_BYTES} bytes without "
                    f"{ITEM_SEPARATOR}"
                )
                self._refuse(place, problem)
            found.append(name)
        return tuple(dict.fromkeys(found))

    def _criterion(self, raw: RawRankingRule, at: int) -> Criterion:
        place: Place = ("ranking", "rules", at)
        since_us, until_us = rule_times(self._document, raw.since, raw.until, place)
        conditions: tuple[Condition, ...] = ()
        if raw.when is not None:
            where = (*place, "when")
            conditions = tuple(self._names.conditions(raw.when, where))
        for one in conditions:
            here = (*place, "when", one.variable.name)
            unknown = one.variable.name == Degraded.MODEL_OUTPUT.name
            if unknown or one.variable.kind in ("score", "label"):
                self._document.refuse(here, "is not known before the items are ranked")
            if not one.spans:
                self._document.refuse(here, "can never hold")
        return Criterion(conditions, from_us=since_us, until_us=until_us)

    def _refuse(self, place: Place, problem: str) -> NoReturn:
        self._document.refuse(("ranking", *place), problem)
