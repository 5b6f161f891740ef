"""
Turn the scored candidates of one request into its list.

Filters, rules, diversity, exploration and a fill from popular items, in this order.
docs/ranking.md defines each. A row is ranked alone, every sum of products in it is
exact, and every draw comes from the request's seed: the same inputs give the same list
on any machine, alone or in any batch.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.policy.ranking_rules import RankingRules
from tollgate.ranking.draws import Draws
from tollgate.schema import ACTIONS, SOURCES

Bool = npt.NDArray[np.bool_]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

NONE = -1  # in place of an item where there is none
# Whose pick an item of an interleaved list is; 0 for neither's, as of a pinned item.
CHAMPION, CHALLENGER = 1, 2
_POPULAR = SOURCES.index("popular")
_PURCHASE = ACTIONS.index("purchase")
_SEEN = [at for at in range(len(ACTIONS)) if at != _PURCHASE]
# Parts of unit vectors are rounded to multiples of this. Then every product and every
# sum of them is exact in float64, in any order, so no library changes a similarity.
_STEP = 2.0**-20
_MOST_SCORE = float(np.finfo(np.float32).max)


class Items(Protocol):
    """Facts about the I items of a catalogue, as far as the rules need them."""

    @property
    def item_ids(self) -> Sequence[bytes]:
        """Return the ids by index."""

    @property
    def categories(self) -> I32:
        """Return the number of each item's category, -1 for none; int32 [I]."""

    @property
    def category_names(self) -> Sequence[str]:
        """Return the names of the categories by number."""

    @property
    def vectors(self) -> F32:
        """Return vectors of unit length; float32 [I, D]."""


class _Shift(msgspec.Struct, frozen=True, eq=False):
    """A boost, or a bury with the reciprocal factor and the negative offset."""

    bit: int
    chosen: Bool
    factor: float
    offset: float


class _Pin(msgspec.Struct, frozen=True):
    bit: int
    position: int
    item: int


class _Cap(msgspec.Struct, frozen=True):
    """At most so many items of each of the categories; None for every category."""

    bit: int
    most: int
    categories: tuple[int, ...] | None


class CatalogueRules(msgspec.Struct, frozen=True, eq=False):
    """
    The ranking rules of a policy, with the indices of one catalogue in place of names.

    Attributes:
        rules: Section of the policy.
        categories: As in the catalogue; int32 [I].
        vectors: The catalogue's, rounded to multiples of 2**-20; float64 [I, D].
        unknown: Name of a rule, and an item or a category of it that the catalogue does
            not have and that has no effect.
    """

    rules: RankingRules
    categories: I32
    vectors: F64
    shifts: tuple[_Shift, ...]
    pins: tuple[_Pin, ...]
    caps: tuple[_Cap, ...]
    unknown: tuple[tuple[str, str], ...]


def bind_rules(rules: RankingRules, items: Items) -> CatalogueRules:
    """
    Look the items and categories of the rules up in a catalogue, once per release.

    Args:
        items: The catalogue.
    """
    index = {name: at for at, name in enumerate(items.item_ids)}
    number = {name: at for at, name in enumerate(items.category_names)}
    shifts, pins, caps = [], [], []
    unknown: list[tuple[str, str]] = []
    for at, rule in enumerate(rules.rules):
        bit = 1 << at
        named = [index[one] for one in rule.items if one in index]
        groups = tuple(number[one] for one in rule.categories if one in number)
        absent = [one.decode() for one in rule.items if one not in index]
        absent += [one for one in rule.categories if one not in number]
        unknown += [(rule.name, one) for one in absent]
        if rule.action == "pin":
            pins += [_Pin(bit, rule.number - 1, one) for one in named]
        elif rule.action == "cap":
            caps.append(_Cap(bit, rule.number, groups if rule.categories else None))
        else:
            chosen = np.isin(items.categories, np.array(groups, np.int32))
            chosen[named] = True
            up = rule.action == "boost"
            factor = rule.factor if up else 1 / rule.factor
            offset = rule.offset if up else -rule.offset
            shifts.append(_Shift(bit, chosen, factor, offset))
    return CatalogueRules(
        rules=rules,
        categories=items.categories,
        vectors=np.rint(items.vectors.astype(np.float64) / _STEP) * _STEP,
        shifts=tuple(shifts),
        pins=tuple(pins),
        caps=tuple(caps),
        unknown=tuple(unknown),
    )


class RankingInput(msgspec.Struct, frozen=True, eq=False):
    """
    Everything that decides the list of one request, besides policy and catalogue.

    Attributes:
        count: Number of items to return, K; 1 to MAX_LIST_SIZE.
        seed: Seed of the request (see `seed_of`).
        in_force: Bit i: the conditions of the policy's i-th ranking rule hold.
        candidates: Indices of items in the order of retrieval, -1 padded; int32 [C].
        sources: Their indices in SOURCES; uint8 [C].
        relevance: The model's scores for them; float32 [C].
        history_items: Items of the user's newest events, -1 for unknown; int32 [H].
        history_actions: Their indices in ACTIONS; int8 [H].
        history_age_s: Time from each event to the request, s; float64 [H].
        excluded: Items that the request excludes; int32 [E].
        available: False for an item out of stock; bool [I].
        fill: Items for a list that the candidates do not fill, the first one first,
            such as the popular items of the user's segment; int32 [P].
        rival: A challenger's relevance of the candidates: then both pick items in turns
            (team draft), and exploration does not apply; float32 [C], None for none.
    """

    count: int
    seed: bytes
    in_force: int
    candidates: I32
    sources: U8
    relevance: F32
    history_items: I32
    history_actions: I8
    history_age_s: F64
    excluded: I32
    available: Bool
    fill: I32
    rival: F32 | None = None


class RankedList(msgspec.Struct, frozen=True, eq=False):
    """
    The list of one request.

    Attributes:
        items: Indices of items, the best first; -1 at the end if there are fewer than
            K that may be shown; int32 [K].
        scores: Relevance after the rules; NaN for an item that the model did not score;
            float32 [K].
        sources: Indices in SOURCES; uint8 [K]. A pinned or filled-in item that was no
            candidate is popular.
        propensities: Probability that this position shows this item; float32 [K].
        inclusions: Probability that the list has this item; float32 [K].
        explored: True where exploration chose the item; bool [K].
        by_relevance: False if a relevance was NaN or infinite: then the list is in the
            order of retrieval, and neither boosts, diversity nor exploration apply.
        caps_relaxed: True if the list has more items of a category than a cap allows,
            because there are no others.
        unavailable: Items that the list would have looked at and that are out of stock,
            ascending; int32 [U].
        filled: Items of `fill` that were looked at, in order; int32 [F].
        teams: Whose pick each item is: CHAMPION, CHALLENGER or 0; uint8 [K], None for a
            list that is not interleaved.
    """

    items: I32
    scores: F32
    sources: U8
    propensities: F32
    inclusions: F32
    explored: Bool
    by_relevance: bool
    caps_relaxed: bool
    unavailable: I32
    filled: I32
    teams: U8 | None = None


def rank_row(given: RankingInput, bound: CatalogueRules) -> RankedList:
    """
    Rank the candidates of one request.

    Args:
        given: The request, its candidates and their relevance.
        bound: Rules of the policy, bound to the catalogue of the same release.
    """
    rules = bound.rules
    first = _distinct(given)
    candidates, sources = given.candidates[first], given.sources[first]
    scores = given.relevance[first].astype(np.float64)
    by_relevance = bool(np.isfinite(scores).all())
    if by_relevance and (sources == _POPULAR).all():
        # The model ranks by what a user did, and of this one nothing is known: the
        # order of popularity counts.
        scores = np.sort(scores)[::-1]
    shelf = _Shelf(given, bound)
    pinned = shelf.pin(bound.pins)
    free = [at for at in range(given.count) if at not in pinned]
    keep = shelf.shows(candidates)
    eligible = candidates[keep]
    if by_relevance:
        scores = _shifted(scores, candidates, given=given, shifts=bound.shifts)
        worth, weight, exploration = scores[keep], rules.diversity, rules.exploration
    else:
        scores = np.full(len(candidates), np.nan)
        worth, weight, exploration = -np.arange(float(len(eligible))), 0.0, None
    rival = _rival_worth(given, bound, first=first, keep=keep) if by_relevance else None
    if rival is not None:
        exploration = None
    picks, sides = _pick(
        eligible,
        (worth,) if rival is None else (worth, rival),
        turns=itertools.repeat(0) if rival is None else _turns(given.seed),
        most=len(free) + (0 if exploration is None else exploration.pool),
        weight=weight,
        shelf=shelf,
        vectors=bound.vectors,
        pinned=list(pinned.values()),
    )
    teams = None
    if rival is not None:
        teams = np.zeros(given.count, np.uint8)
        teams[free[: len(sides)]] = np.array(sides, np.uint8) + CHAMPION
    base, pool = picks[: len(free)], picks[len(free) :]
    propensities = np.ones(given.count, np.float32)
    inclusions = np.ones(given.count, np.float32)
    shown = base
    if exploration is not None:
        skipped = sum(at < exploration.first - 1 for at in free)
        shown, chances = _explore(
            base, pool, skipped, share=exploration.share, seed=given.seed
        )
        varied = free[: len(base)]
        propensities[varied], inclusions[varied] = chances
    explored = np.zeros(given.count, np.bool_)
    for position, new, old in zip(free, shown, base, strict=False):
        explored[position] = new != old
    more, relaxed = shelf.fill(
        len(free) - len(base), rest=eligible[np.argsort(-worth, kind="stable")]
    )
    items = np.full(given.count, NONE, np.int32)
    for position, item in [
        *pinned.items(),
        *zip(free, [*shown, *more], strict=False),
    ]:
        items[position] = item
    order = np.argsort(items == NONE, kind="stable")  # no gap in front of a pin
    items = items[order]
    places = {item: at for at, item in enumerate(candidates.tolist())}
    at = np.array([places.get(item, NONE) for item in items.tolist()], np.intp)
    known = at != NONE
    shown_scores = np.full(given.count, np.nan, np.float32)
    shown_scores[known] = np.clip(scores[at[known]], -_MOST_SCORE, _MOST_SCORE)
    shown_sources = np.full(given.count, _POPULAR, np.uint8)
    shown_sources[known] = sources[at[known]]
    return RankedList(
        items=items,
        scores=shown_scores,
        sources=shown_sources,
        propensities=propensities[order],
        inclusions=inclusions[order],
        explored=explored[order],
        by_relevance=by_relevance,
        caps_relaxed=relaxed,
        unavailable=np.array(sorted(shelf.unavailable), np.int32),
        filled=np.array(shelf.filled, np.int32),
        teams=None if teams is None else teams[order],
    )


def _distinct(given: RankingInput) -> npt.NDArray[np.intp]:
    """Return the positions of the candidates without padding and repetitions."""
    _, first = np.unique(given.candidates, return_index=True)
    first.sort()
    found: npt.NDArray[np.intp] = first[given.candidates[first] >= 0]
    return found


def _rival_worth(
    given: RankingInput,
    bound: CatalogueRules,
    *,
    first: npt.NDArray[np.intp],
    keep: Bool,
) -> F64 | None:
    """Return the challenger's scores of the eligible items; None without any."""
    if given.rival is None:
        return None
    scores = given.rival[first].astype(np.float64)
    if not np.isfinite(scores).all():
        return None
    if (given.sources[first] == _POPULAR).all():
        scores = np.sort(scores)[::-1]  # as the release's own
    candidates = given.candidates[first]
    return _shifted(scores, candidates, given=given, shifts=bound.shifts)[keep]


def _turns(seed: bytes) -> Iterator[int]:
    """
    Yield whose turn it is: in each round both pick, and a draw says who begins.

    Source: team draft, Radlinski, Kurup and Joachims (2008), "How does clickthrough
    data reflect retrieval quality?"
    """
    draws = Draws(seed, "interleaving")
    while True:
        begins = draws.below(2)
        yield begins
        yield 1 - begins


def _shifted(
    scores: F64, candidates: I32, *, given: RankingInput, shifts: Sequence[_Shift]
) -> F64:
    """Apply the boosts and buries in force, in their order."""
    for one in shifts:
        if given.in_force & one.bit:
            chosen = one.chosen[candidates]
            moved = np.where(scores < 0, scores / one.factor, scores * one.factor)
            scores = np.where(chosen, moved + one.offset, scores)
    return scores


class _Shelf:
    """
    Items that a request may still show: in stock, not hidden, within the caps.

    Attributes:
        capped: True if a cap is in force.
    """

    def __init__(self, given: RankingInput, bound: CatalogueRules) -> None:
        self._given = given
        self.categories = bound.categories
        self._hidden = _hidden(given, bound.rules)
        self._blocked = set(self._hidden.tolist())
        self._placed: set[int] = set()
        self._counts: Counter[int] = Counter()
        in_force = [one for one in bound.caps if given.in_force & one.bit]
        self.capped = bool(in_force)
        every = [one.most for one in in_force if one.categories is None]
        self._most = min(every, default=None)
        self._own: dict[int, int] = {}
        for one in in_force:
            for category in one.categories or ():
                limits = (self._own.get(category), self._most, one.most)
                self._own[category] = min(x for x in limits if x is not None)
        self.unavailable: set[int] = set()
        self.filled: list[int] = []

    def shows(self, items: I32) -> Bool:
        """Return which candidates are in stock, neither hidden nor placed; bool [C]."""
        here = self._given.available[items]
        self.unavailable.update(items[~here].tolist())
        hidden = [*self._hidden.tolist(), *self._placed]
        if hidden:
            out = np.array(hidden, np.int32)
            here = here & ~(items[:, None] == out).any(axis=1)
        return here

    def pin(self, pins: Sequence[_Pin]) -> dict[int, int]:
        """Place the pins in force; return item by position."""
        found: dict[int, int] = {}
        for one in pins:
            if (
                self._given.in_force & one.bit
                and one.position < self._given.count
                and one.position not in found
                and self._may_show(one.item)
                and self.has_room(one.item)
            ):
                self.place(one.item)
                found[one.position] = one.item
        return found

    def has_room(self, item: int) -> bool:
        """Return whether the caps allow one more item of this one's category."""
        if not self.capped:
            return True
        most = self._room(int(self.categories[item]))
        return most is None or most > 0

    def place(self, item: int) -> bool:
        """Count an item as placed; return whether its category is full now."""
        self._placed.add(item)
        if not self.capped:
            return False
        category = int(self.categories[item])
        self._counts[category] += 1
        return self._room(category) == 0

    def fill(self, missing: int, *, rest: I32) -> tuple[list[int], bool]:
        """
        Find items for the end of the list.

        First come items of `fill` within the caps; then, if there are too few, those
        that the caps left out: candidates, and items of `fill`.

        Args:
            missing: Number of items.
            rest: Candidates that may be shown, the best first.

        Returns:
            The items, and whether the caps do not hold.
        """
        found: list[int] = []
        left: list[int] = []
        for item in self._given.fill.tolist():
            if len(found) == missing:
                break
            self.filled.append(item)
            if not self._may_show(item):
                continue
            if self.has_room(item):
                self.place(item)
                found.append(item)
            else:
                left.append(item)
        within = len(found)
        for item in [*rest.tolist(), *left]:
            if len(found) == missing:
                break
            if item not in self._placed:
                self.place(item)
                found.append(item)
        return found, len(found) > within

    def _may_show(self, item: int) -> bool:
        if not self._given.available[item]:
            self.unavailable.add(item)
            return False
        return item not in self._blocked and item not in self._placed

    def _room(self, category: int) -> int | None:
        """Return how many more items of a category the caps allow; None for any."""
        most = None if category < 0 else self._own.get(category, self._most)
        return None if most is None else most - self._counts[category]


def _hidden(given: RankingInput, rules: RankingRules) -> I32:
    """Return the items that a request must not show, because of it or its history."""
    parts = [given.excluded]
    actions, age_s = given.history_actions, given.history_age_s
    if rules.bought_s:
        within = (actions == _PURCHASE) & (age_s < rules.bought_s)
        parts.append(given.history_items[within])
    if rules.seen_s:
        within = np.isin(actions, _SEEN) & (age_s < rules.seen_s)
        parts.append(given.history_items[within])
    return np.unique(np.concatenate(parts))


def _pick(
    items: I32,
    worths: Sequence[F64],
    *,
    turns: Iterator[int],
    most: int,
    weight: float,
    shelf: _Shelf,
    vectors: F64,
    pinned: list[int],
) -> tuple[list[int], list[int]]:
    """
    Pick items one by one: each is the best of those left (maximal marginal relevance).

    Args:
        items: Items that may be shown; int32 [C].
        worths: Their scores by side; float64 [C] each.
        turns: Sides by turn; indices in `worths`.
        most: Number of picks.
        weight: Weight of the greatest similarity to an earlier pick, or a pinned item.

    Returns:
        The picks, and the side of each.
    """
    picks: list[int] = []
    sides: list[int] = []
    if not len(items):
        return picks, sides
    ids = items.tolist()
    if weight == 0.0 and len(worths) == 1:
        for at in np.argsort(-worths[0], kind="stable").tolist():
            if len(picks) == most:
                break
            if shelf.has_room(ids[at]):
                shelf.place(ids[at])
                picks.append(ids[at])
        return picks, [0] * len(picks)
    values = np.stack([_scaled(worth, weight) for worth in worths])
    if shelf.capped:
        values[:, [not shelf.has_room(item) for item in ids]] = -np.inf
    own = vectors[items]
    nearest = np.zeros(len(items))  # an opposite is as good as an unrelated item
    for item in pinned:
        np.maximum(nearest, own @ vectors[item], out=nearest)
    categories = shelf.categories[items]
    left = np.empty(len(items))
    while len(picks) < most:
        side = next(turns)
        np.multiply(nearest, weight, out=left)
        np.subtract(values[side], left, out=left)
        at = int(left.argmax())
        if values[side, at] == -np.inf:
            break
        picks.append(ids[at])
        sides.append(side)
        values[:, at] = -np.inf
        if shelf.place(ids[at]):
            values[:, categories == categories[at]] = -np.inf
        own.dot(own[at], out=left)
        np.maximum(nearest, left, out=nearest)
    return picks, sides


def _scaled(worth: F64, weight: float) -> F64:
    """Return scores as diversity weighs them; as they are without it."""
    if weight == 0.0:
        return worth
    low, high = worth.min(), worth.max()
    scaled = (worth - low) / (high - low) if high > low else np.zeros(len(worth))
    return (1 - weight) * scaled


def _explore(
    base: list[int], pool: list[int], skipped: int, *, share: float, seed: bytes
) -> tuple[list[int], tuple[F32, F32]]:
    """
    Replace the items at random positions by random ones.

    Each position after the skipped ones is explored with probability `share`. The items
    of the explored positions go back into the pool; then each of these positions gets
    an item from it, all equally likely.

    Returns:
        The list, and of each of its positions the probability of this item here, and
        anywhere in the list; float32 each.
    """
    shown, open_ = list(base), len(base) - skipped
    certain = np.ones(len(base), np.float32)
    if open_ <= 0:
        return shown, (certain, certain)
    draws = Draws(seed, "exploration")
    at = (np.flatnonzero(draws.uniforms(open_) < share) + skipped).tolist()
    bag = [*(base[one] for one in at), *pool]
    for one in at:
        shown[one] = bag.pop(draws.below(len(bag)))
    chances = exploration_chances(open_, len(pool), share)
    pooled = set(pool)
    here, anywhere = certain, certain.copy()
    for one in range(skipped, len(base)):
        if shown[one] in pooled:
            here[one], anywhere[one] = chances.from_pool, chances.pool_in_list
        else:
            own = shown[one] == base[one]
            here[one] = chances.own if own else chances.other
            anywhere[one] = chances.base_in_list
    return shown, (here, anywhere)


class Chances(msgspec.Struct, frozen=True):
    """
    Probabilities under exploration.

    Attributes:
        own: A position shows the item that it has without exploration.
        other: It shows one given item of another position.
        from_pool: It shows one given item of the pool.
        base_in_list: The list has one given item that it has without exploration.
        pool_in_list: The list has one given item of the pool.
    """

    own: float
    other: float
    from_pool: float
    base_in_list: float
    pool_in_list: float


@functools.lru_cache(maxsize=4096)
def exploration_chances(positions: int, pool: int, share: float) -> Chances:
    """
    Return the probabilities of a list's items, over all seeds.

    Args:
        positions: Number of positions that may be explored, at least 1.
        pool: Number of items in the pool.
        share: Probability that a position is explored.
    """
    alone = _explored_counts(positions - 1, share)  # others, given that one is explored
    both = _explored_counts(positions - 2, share)
    drawn = share * math.fsum(p / (pool + 1 + n) for n, p in enumerate(alone))
    swapped = math.fsum(p / (pool + 2 + n) for n, p in enumerate(both))
    returned = math.fsum(p * (n + 1) / (pool + n + 1) for n, p in enumerate(alone))
    every = enumerate(_explored_counts(positions, share))
    chosen = math.fsum(p * n / (pool + n) for n, p in every if n)
    return Chances(
        own=1 - share + drawn,
        other=share * share * swapped,
        from_pool=drawn,
        base_in_list=1 - share + share * returned,
        pool_in_list=chosen,
    )


def _explored_counts(positions: int, share: float) -> list[float]:
    """
    Return the probability of each number of explored positions; empty below 0.

    It multiplies and adds alone, so every machine gives the same bits.
    """
    found = [1.0] if positions >= 0 else []
    for _ in range(positions):
        found = [
            one * (1 - share) + before * share
            for one, before in zip([*found, 0.0], [0.0, *found], strict=True)
        ]
    return found
