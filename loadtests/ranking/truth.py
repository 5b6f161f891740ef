"""
Prove that no list shows an item that is out of stock, or that its user has bought.

While lists are requested, items go out of stock and come back, and users buy. The
caller notes each change by its own clock, and judges every list by these notes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from time import perf_counter

import msgspec
import redis

from loadtests.chaos import pace
from loadtests.ranking.bench import RankingBench, ShopContents, purchase
from tollgate.errors import StoreError
from tollgate.load.process_usage import use_of
from tollgate.schema import PREPARED_PREFIX
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.stock_view import INTERVAL_S
from tollgate_client import (
    AsyncRecommender,
    Degraded,
    Recommendations,
)

_PATIENCE_S = 30.0  # of the caller: every list is the server's
_STORE_S = 10.0
_PREPARE_S = 2.0  # between two runs of the preparation of lists
_OUT = 100  # items out of stock at a time
_CHANGE_S = 0.05  # between two changes of the stock
_BUY = 0.2  # share of the lists of which the first item is bought
_LATELY = 400  # shown items of which some go out of stock
_STORE_LATE = Degraded.STORE_UNAVAILABLE | Degraded.LAST_KNOWN_VECTOR


class Absence(msgspec.Struct):
    """
    Time in which an item was not to be shown, on time.perf_counter.

    Attributes:
        began_s: When the store had confirmed it.
        ended_s: Just before the command that ends it; infinity while it lasts.
    """

    began_s: float
    ended_s: float = float("inf")

    def age_s(self, sent_s: float, answered_s: float) -> float | None:
        """
        Return how long it had lasted when a request was sent.

        Returns:
            None if it had not begun by then, or ended before the answer.
        """
        if self.began_s <= sent_s and self.ended_s >= answered_s:
            return sent_s - self.began_s
        return None


class Notes:
    """Note changes of stock and purchases, with the caller's time of each."""

    def __init__(self) -> None:
        self._out: dict[str, list[Absence]] = {}
        self._bought: dict[tuple[str, str], Absence] = {}

    def goes_out(self, item: str) -> None:
        """Note that the store has confirmed that an item is out of stock."""
        self._out.setdefault(item, []).append(Absence(perf_counter()))

    def comes_back(self, item: str) -> None:
        """Note that a command is about to put an item into stock."""
        self._out[item][-1].ended_s = perf_counter()

    def buys(self, user: str, item: str) -> None:
        """Note that the store has confirmed a purchase; the first one counts."""
        self._bought.setdefault((user, item), Absence(perf_counter()))

    def out_s(self, item: str, sent_s: float, answered_s: float) -> float | None:
        """Return how long an item had been out of stock; see `Absence.age_s`."""
        ages = [one.age_s(sent_s, answered_s) for one in self._out.get(item, ())]
        return max((age for age in ages if age is not None), default=None)

    def bought_s(
        self, user: str, item: str, sent_s: float, answered_s: float
    ) -> float | None:
        """Return how long ago a user had bought an item; see `Absence.age_s`."""
        one = self._bought.get((user, item))
        return None if one is None else one.age_s(sent_s, answered_s)


class Shown(msgspec.Struct, frozen=True):
    """A list, and when it was requested and answered, on time.perf_counter."""

    user: str
    items: tuple[str, ...]
    sent_s: float
    answered_s: float
    degraded: bool
    prepared: bool
    by_server: bool


class Truth(msgspec.Struct, frozen=True):
    """
    Result of the proof.

    Attributes:
        lists: Number of lists by the server.
        prepared: Those of them that were prepared ahead.
        others: Number of lists by the client: none is judged, so there should be none.
        changes: Number of times that an item went out of stock.
        purchases: Number of purchases.
        staleness_s: Longest time that an item may be shown after it went out of stock.
        withheld_out: Items of the user's list before that were out of stock, and were
            not shown again.
        withheld_bought: Those that the user had bought.
        out_shown: Items shown after they had been out of stock for longer than that.
        oldest_s: Longest time after which an item out of stock was shown; 0 for none.
        bought_shown: Items shown that the user had bought before the request.
        degraded: Lists whose user's events the store did not give in time.
        degraded_bought: Items shown in these that the user had bought.
        cpu_s: Processor time of server and store.
        seconds: Duration.
    """

    lists: int
    prepared: int
    others: int
    changes: int
    purchases: int
    staleness_s: float
    withheld_out: int
    withheld_bought: int
    out_shown: int
    oldest_s: float
    bought_shown: int
    degraded: int
    degraded_bought: int
    cpu_s: float
    seconds: float

    @property
    def ok(self) -> bool:
        """Return whether no item was wrong, and items were withheld at all."""
        tested = self.lists and self.withheld_out and self.withheld_bought
        wrong = self.others or self.out_shown or self.bought_shown
        return bool(tested) and not wrong


def judge(
    shown: Iterable[Shown],
    notes: Notes,
    *,
    staleness_s: float,
    changes: int = 0,
    purchases: int = 0,
    cpu_s: float = 0.0,
    seconds: float = 0.0,
) -> Truth:
    """
    Judge lists by the notes of the caller.

    Args:
        shown: Lists in the order in which they were answered.
        staleness_s: Longest time that an item may be shown after it went out of stock.
        changes, purchases, cpu_s, seconds: See `Truth`.
    """
    lists = prepared = others = degraded = degraded_bought = 0
    out_shown = bought_shown = withheld_out = withheld_bought = 0
    oldest_s = 0.0
    before: dict[str, tuple[str, ...]] = {}
    for one in shown:
        if not one.by_server:
            others += 1
            continue
        lists += 1
        prepared += one.prepared
        degraded += one.degraded
        times = (one.sent_s, one.answered_s)
        for item in one.items:
            out_s = notes.out_s(item, *times)
            if out_s is not None:
                oldest_s = max(oldest_s, out_s)
                out_shown += out_s > staleness_s
            if notes.bought_s(one.user, item, *times) is not None:
                degraded_bought += one.degraded
                bought_shown += not one.degraded
        for item in set(before.get(one.user, ())) - set(one.items):
            withheld_out += notes.out_s(item, *times) is not None
            withheld_bought += notes.bought_s(one.user, item, *times) is not None
        before[one.user] = one.items
    return Truth(
        lists=lists,
        prepared=prepared,
        others=others,
        changes=changes,
        purchases=purchases,
        staleness_s=staleness_s,
        withheld_out=withheld_out,
        withheld_bought=withheld_bought,
        out_shown=out_shown,
        oldest_s=oldest_s,
        bought_shown=bought_shown,
        degraded=degraded,
        degraded_bought=degraded_bought,
        cpu_s=cpu_s,
        seconds=seconds,
    )


class _Stock:
    """
    Puts items out of stock and back, in a thread.

    Args:
        contents: Has the list.
        notes: Where each change is noted.
        out: Number of items out of stock at a time.
        seed: Of the choice.

    Attributes:
        lately: Items shown lately; one of these goes out next.
        changes: Number of items that went out.
    """

    def __init__(
        self,
        store_url: str,
        contents: ShopContents,
        notes: Notes,
        *,
        out: int,
        seed: int,
    ) -> None:
        self.lately: deque[str] = deque(contents.popular[:_LATELY], maxlen=_LATELY)
        self.changes = 0
        self._key = contents.stock
        self._notes = notes
        self._most = out
        self._out: deque[str] = deque()
        self._chance = random.Random(seed)
        self._store = redis.Redis.from_url(store_url, socket_timeout=_STORE_S)
        self._ended = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stock", daemon=True)

    def __enter__(self) -> _Stock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._store.delete(self._key)
        self._store.close()
        if self._problem is not None:
            raise StoreError(f"{self._key}: {self._problem}") from self._problem

    def _run(self) -> None:
        try:
            while not self._ended.wait(_CHANGE_S):
                self._change()
        except redis.RedisError as error:
            self._problem = error

    def _change(self) -> None:
        if len(self._out) >= self._most:
            item = self._out.popleft()
            self._notes.comes_back(item)
            self._store.srem(self._key, item)
        item = self._chance.choice(tuple(self.lately))
        if item not in self._out:
            self._store.sadd(self._key, item)
            self._notes.goes_out(item)
            self._out.append(item)
            self.changes += 1


async def prove_truth(
    bench: RankingBench,
    *,
    answers: int,
    rate: float,
    users: int,
    margin_s: float,
    out: int = _OUT,
    count: int = 10,
    seed: int = 0,
) -> Truth:
    """
    Request lists while the stock changes and users buy, and judge each.

    Args:
        answers: Number of lists.
        rate: Lists per second.
        users: Number of users, each of whom requests many lists; the lists of half of
            them are prepared, again and again.
        margin_s: Time that an item may be shown after the stock view's interval.
        out: Number of items out of stock at a time.
        count: Items of a list.
        seed: Of the choice of users and items.

    Raises:
        StoreError: The store does not answer.
    """
    chance = random.Random(seed)
    own, others = bench.store.prepared[: users // 2], bench.store.others
    some = [*own, *others[: users - len(own)]]
    notes = Notes()
    shown: list[Shown] = []
    bought: list[str] = []
    writer = EventWriter(
        bench.contents.spec, open_store(bench.redis.url, deadline_s=_STORE_S)
    )
    stock = _Stock(bench.redis.url, bench.contents, notes, out=out, seed=seed)
    buying = asyncio.Lock()  # the writer is one connection

    async def buy(user: str, item: str) -> None:
        async with buying:
            event = purchase(user, item, time_us=_now_us())
            bought.append(item)
            outcome = await asyncio.to_thread(writer.purchases, event)
        if not outcome.applied.all():
            raise StoreError(f"the purchase of {item} by {user} was not applied")
        notes.buys(user, item)

    async def call(number: int) -> bool:
        user = chance.choice(some)
        sent_s = perf_counter()
        answer = await client.recommend(f"truth-{seed}-{number}", user, count=count)
        shown.append(_shown(user, answer, sent_s=sent_s))
        stock.lately.extend(answer.items[:3])
        if chance.random() < _BUY and answer.items:
            await buy(user, answer.items[0])
        return answer.source_of_list == "server"

    async with AsyncRecommender(
        [bench.server.grpc_url],
        fallback=bench.contents.own_list(),
        options=dataclasses.replace(bench.contents.options, deadline_s=_PATIENCE_S),
        coalescing=None,
    ) as client:
        await client.wait_ready(_PATIENCE_S)
        before_s, began_s = _cpu_s(bench), perf_counter()
        with stock:
            preparing = asyncio.ensure_future(_keep_prepared(bench, own))
            await pace(call, count=answers, rate=rate, turns={})
            preparing.cancel()
        seconds = perf_counter() - began_s
    return judge(
        shown,
        notes,
        staleness_s=INTERVAL_S + margin_s,
        changes=stock.changes,
        purchases=len(bought),
        cpu_s=_cpu_s(bench) - before_s,
        seconds=seconds,
    )


async def _keep_prepared(bench: RankingBench, users: Sequence[str]) -> None:
    """Prepare the lists again that the users' purchases have ended."""
    while True:
        await asyncio.to_thread(bench.store.prepare, users)
        await asyncio.sleep(_PREPARE_S)


def _shown(user: str, answer: Recommendations, *, sent_s: float) -> Shown:
    """Note a list; the client's own items in it are no claim of the server."""
    pairs = zip(answer.items, answer.sources, strict=True)
    return Shown(
        user=user,
        items=tuple(item for item, source in pairs if source != "client"),
        sent_s=sent_s,
        answered_s=perf_counter(),
        degraded=bool(answer.degraded & _STORE_LATE),
        prepared=any(one.startswith(PREPARED_PREFIX) for one in answer.sources),
        by_server=answer.source_of_list == "server",
    )


def _now_us() -> int:
    return time.time_ns() // 1000


def _cpu_s(bench: RankingBench) -> float:
    return use_of([bench.server.triton.pid, bench.redis.pid]).cpu_s
