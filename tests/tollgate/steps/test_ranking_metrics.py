"""What the ranking step counts, against lists that were counted by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.steps.metric_families import PB, Page, value
from tollgate.engine.ranking_stage import RankedDecisions
from tollgate.ranking.rank import RankedList
from tollgate.schema import Outcomes, context_dtype
from tollgate.steps.ranking_metrics import RankingMetrics

SPEC = 7
PERSONAL, SIMILAR, POPULAR, FALLBACK = range(4)
NAN = float("nan")


@pytest.fixture(autouse=True)
def page() -> None:
    """Empty the page."""
    Page.values.clear()
    Page.messages.clear()


@pytest.fixture
def metrics() -> Iterator[RankingMetrics]:
    """The metrics of a ranking step with a challenger."""
    made = RankingMetrics(
        PB,
        labels={"product": "p"},
        releases=("one", "two"),
        spec_hash=SPEC,
        outcomes=Outcomes(("personal", "weak", "fallback")),
    )
    yield made
    made.close()


def ranked(
    items: list[int],
    sources: list[int],
    *,
    scores: list[float] | None = None,
    explored: tuple[int, ...] = (),
    by_relevance: bool = True,
    caps_relaxed: bool = False,
) -> RankedList:
    """Make a list; -1 is no item."""
    size = len(items)
    places = np.zeros(size, np.bool_)
    places[list(explored)] = True
    return RankedList(
        items=np.array(items, np.int32),
        scores=np.array(scores or [0.5] * size, np.float32),
        sources=np.array(sources, np.uint8),
        propensities=np.ones(size, np.float32),
        inclusions=np.ones(size, np.float32),
        explored=places,
        by_relevance=by_relevance,
        caps_relaxed=caps_relaxed,
        unavailable=np.zeros(0, np.int32),
        filled=np.zeros(0, np.int32),
    )


def decided(lists: list[RankedList | None]) -> RankedDecisions:
    """Make decisions on lists."""
    rows = len(lists)
    return RankedDecisions(
        decision=np.zeros(rows, np.uint8),
        score=np.full(rows, 0.5, np.float32),
        reason_codes=np.full(rows, b"", np.object_),
        degraded=np.zeros(rows, np.uint32),
        rules=np.zeros(rows, np.uint64),
        segment=np.zeros(rows, np.uint8),
        given=[None] * rows,
        lists=lists,
    )


def context(rows: int) -> Any:
    """Make usual contexts."""
    made = np.zeros(rows, context_dtype(("user",)))
    made["spec_hash"] = SPEC
    return made


def counted(name: str, label: str, *, release: str = "one") -> dict[str, float]:
    """Read a counter of a release by a label, without zeros."""
    found = {}
    for (family, named), number in Page.values.items():
        labels = dict(named)
        if family == name and labels["release"] == release and number:
            found[labels[label]] = number
    return found


def test_lists_and_items_are_counted_by_source(metrics: RankingMetrics) -> None:
    """The first item with a score says the list's source: a pinned one has none."""
    lists: list[RankedList | None] = [
        ranked([4, 5, 6], [PERSONAL, SIMILAR, PERSONAL]),
        ranked([9, 5, 6], [POPULAR, SIMILAR, PERSONAL], scores=[NAN, 0.5, 0.4]),
        ranked([1, 2, 3], [FALLBACK] * 3),
    ]
    metrics.batch(context(3), decided(lists), chosen=None, began_us=0)
    metrics.close()
    assert counted("tollgate_lists_total", "source") == {
        "personal": 1,
        "similar": 1,
        "fallback": 1,
    }
    assert counted("tollgate_list_items_total", "source") == {
        "personal": 3,
        "similar": 2,
        "popular": 1,
        "fallback": 3,
    }
    assert counted("tollgate_list_defects_total", "defect") == {}


def test_defects_and_explored_items_are_counted(metrics: RankingMetrics) -> None:
    """An absent item is neither shown nor explored."""
    lists: list[RankedList | None] = [
        ranked([4, 5, -1], [PERSONAL, SIMILAR, POPULAR], explored=(1, 2)),
        ranked([-1, -1, -1], [POPULAR] * 3, scores=[NAN] * 3),
        ranked([1, 2, 3], [POPULAR] * 3, scores=[NAN] * 3, by_relevance=False),
        ranked([1, 2, 3], [PERSONAL] * 3, caps_relaxed=True, explored=(0,)),
    ]
    metrics.batch(context(4), decided(lists), chosen=None, began_us=0)
    metrics.close()
    assert counted("tollgate_list_defects_total", "defect") == {
        "short": 2,
        "empty": 1,
        "unranked": 1,
        "over_cap": 1,
    }
    assert value("tollgate_explored_items_total", release="one") == 2
    assert counted("tollgate_lists_total", "source") == {
        "personal": 2,
        "popular": 1,
        "none": 1,
    }


def test_only_answered_lists_of_callers_count(metrics: RankingMetrics) -> None:
    """Dry runs and bad rows are no lists, and the challenger's are its own."""
    rows = context(4)
    rows["dry_run"][0] = 1
    rows["bad"][1] = 1
    one = ranked([4], [PERSONAL])
    chosen = np.array([False, False, False, True])
    metrics.batch(rows, decided([one, None, one, one]), chosen=chosen, began_us=0)
    metrics.close()
    for release in ("one", "two"):
        lists = counted("tollgate_lists_total", "source", release=release)
        assert lists == {"personal": 1}


def test_every_series_begins_with_zero(metrics: RankingMetrics) -> None:
    """A counter that begins with 1 has no rate."""
    begun = {name for name, _ in Page.values}
    assert set(RankingMetrics.counters) - begun <= {
        "tollgate_score_log_odds_sum",
        "tollgate_step_busy_seconds_total",
        "tollgate_gc_collections_total",
        "tollgate_hysteresis_rows_total",
    }
    assert Page.messages == []
