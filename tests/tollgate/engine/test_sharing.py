"""Identical dry requests of a moment look at the store once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from tests.support.steps.in_process_steps import NOW_US, Pipeline, bought, request, use
from tests.support.steps.triton_classes import Request
from tollgate.engine.row_batches import DryShare, Group
from tollgate.schema import Degraded
from tollgate.store.fallback.fallback_chain import Scored
from tollgate.store.lookups import LookupResult
from tollgate.store.store_events import Purchases

REPOSITORY = Path(__file__).parents[3] / "model_repository"


@pytest.fixture
def pipeline(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """Both steps over an empty store, without a journal."""
    use(monkeypatch, store_url=store_url, journal_url="")
    opened = Pipeline(REPOSITORY / "fraud_features/1", REPOSITORY / "fraud_decision/1")
    yield opened
    opened.close()


def calls(pipeline: Pipeline) -> int:
    """Count the calls of the store that were answered."""
    return pipeline.features._chain.counts.calls["answered"]


def dry(*names: str, **changes: object) -> Request:
    """Make a dry request of purchases at one terminal."""
    return request(*(bought(name, **changes) for name in names), dry_run=True)


def test_identical_dry_requests_share_one_look(pipeline: Pipeline) -> None:
    """In one batch and in the next, to the bit; each has its own answer."""
    (alone,) = pipeline.answer(dry("t1", "t2"))
    assert calls(pipeline) == 1
    assert pipeline.answer(*[dry("t1", "t2")] * 3) == [alone] * 3
    assert calls(pipeline) == 1
    assert pipeline.features._share.rows == 6
    fresh = pipeline.answer(dry("n"), dry("t1", "t2"), dry("n"))
    assert fresh == [fresh[0], alone, fresh[0]]
    assert calls(pipeline) == 2
    assert pipeline.features._share.rows == 6 + 2 + 1


def test_rows_of_a_request_see_each_other_so_only_the_whole_is_shared(
    pipeline: Pipeline,
) -> None:
    """The same row in other company has another vector."""
    row = bought("t9", at_us=NOW_US + 9)
    before = bought("t8", at_us=NOW_US + 8)
    (both,) = pipeline.answer(request(before, row, dry_run=True))
    (alone,) = pipeline.answer(request(row, dry_run=True))
    assert both[1][1] != alone[0][1]
    assert pipeline.features._share.rows == 0


def test_what_is_written_is_never_shared(pipeline: Pipeline) -> None:
    """Each real row reaches the store, the same one twice as well."""
    one = request(bought("t1"))
    for _ in range(3):
        pipeline.answer(one)
    assert calls(pipeline) == 3
    assert pipeline.features._share.rows == 0


@pytest.mark.parametrize("same", ["customer", "terminal"])
def test_a_write_to_its_entities_ends_it(pipeline: Pipeline, same: str) -> None:
    """What this process wrote is seen at once; of other entities it is no matter."""
    first = bought("t1", at_us=NOW_US - 1, **{"customer": "x", "terminal": "x"})
    look_up = dry("t9")
    (before,) = pipeline.answer(look_up)
    pipeline.answer(request(first))
    assert pipeline.answer(look_up) == [before]
    assert pipeline.features._share.rows == 1
    other = {"customer": "terminal", "terminal": "customer"}[same]
    pipeline.answer(request(bought("t2", at_us=NOW_US - 1, **{other: "x"})))
    made = calls(pipeline)
    (after,) = pipeline.answer(look_up)
    assert calls(pipeline) == made + 1
    if same == "customer":  # what a terminal's windows hold, they hold a week later
        assert after[0][1] != before[0][1]


def test_a_store_that_is_away_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each dry request is answered by what is known at that moment."""
    use(monkeypatch, store_url="", journal_url="")
    opened = Pipeline(REPOSITORY / "fraud_features/1", REPOSITORY / "fraud_decision/1")
    opened.answer(dry("t1"))
    opened.answer(dry("t1"))
    opened.close()
    assert opened.features._share.rows == 0


def test_none_may_be_shared(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dry_share_ms` of 0 asks the store each time."""
    use(monkeypatch, store_url=store_url, journal_url="")
    opened = Pipeline(
        REPOSITORY / "fraud_features/1",
        REPOSITORY / "fraud_decision/1",
        parameters={"dry_share_ms": "0"},
    )
    assert opened.answer(dry("t1")) == opened.answer(dry("t1"))
    assert calls(opened) == 2
    opened.close()


# By itself --------------------------------------------------------------------------


class Store:
    """Counts what it is asked, and answers with that count."""

    def __init__(self, degraded: int = 0) -> None:
        self.looked_up = 0
        self.degraded = degraded

    def __call__(self, groups: list[Group]) -> list[Scored]:
        """Answer."""
        self.looked_up += len(groups)
        return [
            Scored(
                features=np.full((len(one.rows), 1), self.looked_up, np.float64),
                degraded=np.full(len(one.rows), self.degraded, np.uint32),
                applied=np.ones(len(one.rows), np.uint8),
                age_us=np.zeros(len(one.rows), np.int64),
                lookups=LookupResult(
                    [b""] * len(one.rows),
                    np.zeros(len(one.rows), np.uint32),
                    np.zeros(len(one.rows), np.uint32),
                ),
            )
            for one in groups
        ]


def group(number: int, rows: int = 1, *, is_dry: bool = True) -> Group:
    """A request of one customer, numbered."""
    return Group(
        rows=np.arange(rows),
        purchases=Purchases(
            transaction_id=[b"%d" % number] * rows,
            entity_id=[[b"%d" % number] * rows],
            event_time_us=np.zeros(rows, np.int64),
            cents=np.zeros(rows, np.int64),
        ),
        dry=is_dry,
    )


def look_up(share: DryShare, store: Store, number: int, rows: int = 1) -> float:
    """Ask for one dry request; what the store answered, now or before."""
    prints = np.full(rows, number, np.uint64)
    (one,) = share.score([group(number, rows)], fingerprints=prints, look_up=store)
    return float(one.features[0, 0])


def test_without_entities_a_row_of_the_same_id_ends_it() -> None:
    """What was decided of it in between is found, as nothing else can change."""
    share, store = DryShare(1.0, clock=lambda: 0.0), Store()
    prints = np.zeros(1, np.uint64)

    def looked_up(number: int, *, is_dry: bool) -> float:
        one = group(number, is_dry=is_dry)
        alone = structs.replace(one.purchases, entity_id=[])
        one = structs.replace(one, purchases=alone)
        (scored,) = share.score([one], fingerprints=prints + number, look_up=store)
        return float(scored.features[0, 0])

    assert [looked_up(1, is_dry=True), looked_up(1, is_dry=True)] == [1.0, 1.0]
    looked_up(2, is_dry=False)
    assert looked_up(1, is_dry=True) == 1.0
    looked_up(1, is_dry=False)
    assert looked_up(1, is_dry=True) == 4.0


def test_it_lasts_for_its_life_and_no_longer() -> None:
    """From when it was read, however often it is requested."""
    now = [100.0]
    share, store = DryShare(1.0, clock=lambda: now[0]), Store()
    assert look_up(share, store, 1) == 1
    for now[0] in (100.5, 100.9, 100.99):
        assert look_up(share, store, 1) == 1
    now[0] = 101.0
    assert look_up(share, store, 1) == 2
    now[0] = 101.5
    assert look_up(share, store, 2) == 3
    assert look_up(share, store, 1) == 2


def test_it_is_bounded_and_the_oldest_leaves_first() -> None:
    """By rows; a request with more than that is not cached, and nothing leaks."""
    share, store = DryShare(1e9, most_rows=10), Store()
    for number in range(100):
        look_up(share, store, number, rows=3)
    assert store.looked_up == 100
    calls = [look_up(share, store, number, rows=3) for number in (97, 98, 99)]
    assert calls == [98, 99, 100]
    assert look_up(share, store, 5, rows=11) == 101
    assert look_up(share, store, 5, rows=11) == 102
    assert (len(share._results), share._rows_held, len(share._users)) == (3, 9, 3)


@pytest.mark.parametrize(
    ("bit", "cached"),
    [
        (Degraded.COLD_START, True),
        (Degraded.FEED_STALE, True),
        (Degraded.STORE_UNAVAILABLE, False),
        (Degraded.LAST_KNOWN_VECTOR, False),
        (Degraded.LOOKUPS_UNREAD, False),
    ],
)
def test_only_replies_of_the_store_are_cached(bit: Degraded, cached: bool) -> None:
    """An answer for want of a better one is given once."""
    share, store = DryShare(1.0, clock=lambda: 0.0), Store(int(bit))
    look_up(share, store, 1)
    assert (look_up(share, store, 1) == 1) is cached
