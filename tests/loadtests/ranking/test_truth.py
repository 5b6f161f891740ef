"""The proof notices each item that a list must not show."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadtests.ranking.bench import ShopStore, open_bench
from loadtests.ranking.truth import Absence, Notes, Shown, Truth, judge, prove_truth
from tollgate.repository.slo import Form

PROVEN = Truth(
    lists=2,
    prepared=1,
    others=0,
    changes=1,
    purchases=1,
    staleness_s=0.5,
    withheld_out=1,
    withheld_bought=1,
    out_shown=0,
    oldest_s=0.0,
    bought_shown=0,
    degraded=0,
    degraded_bought=0,
    cpu_s=0.0,
    seconds=1.0,
)


class FixedNotes(Notes):
    """Item "a" is out from second 10 to 20, and "u" bought "b" in second 10."""

    def __init__(self) -> None:
        self._out = {"a": [Absence(10.0, 20.0)]}
        self._bought = {("u", "b"): Absence(10.0)}


def shown(items: str, sent_s: float, *, degraded: bool = False) -> Shown:
    """A list of one-letter items, answered 0.1 s after the request."""
    return Shown(
        user="u",
        items=tuple(items),
        sent_s=sent_s,
        answered_s=sent_s + 0.1,
        degraded=degraded,
        prepared=False,
        by_server=True,
    )


def judged(*lists: Shown) -> Truth:
    return judge(lists, FixedNotes(), staleness_s=0.5)


@pytest.mark.parametrize(
    ("sent_s", "wrong", "oldest_s"),
    [
        (9.9, 0, 0.0),  # before the store confirmed it
        (10.4, 0, 0.4),  # the view may be that old
        (10.6, 1, 0.6),
        (19.8, 1, 9.8),
        (19.95, 0, 0.0),  # it came back before the answer
        (21.0, 0, 0.0),
    ],
)
def test_an_item_may_be_shown_until_the_view_must_know(
    sent_s: float, wrong: int, oldest_s: float
) -> None:
    found = judged(shown("xay", sent_s))
    assert found.out_shown == wrong
    assert found.oldest_s == pytest.approx(oldest_s)


def test_a_bought_item_is_wrong_from_then_on_for_this_user() -> None:
    assert judged(shown("b", 9.95)).bought_shown == 0
    assert judged(shown("b", 10.05)).bought_shown == 1
    other = replace(shown("b", 10.05), user="v")
    assert judged(other).bought_shown == 0
    late = judged(shown("b", 10.05, degraded=True))
    assert (late.bought_shown, late.degraded, late.degraded_bought) == (0, 1, 1)


def test_items_that_are_gone_from_a_users_list_are_counted() -> None:
    ahead = replace(shown("xyz", 15.0), prepared=True)
    found = judged(shown("abx", 9.0), ahead)
    assert (found.lists, found.prepared) == (2, 1)
    assert (found.withheld_out, found.withheld_bought) == (1, 1)
    assert found.ok
    assert not judged(shown("xyz", 9.0), shown("xyz", 15.0)).ok


@pytest.mark.parametrize(
    "change",
    [
        {"lists": 0},
        {"others": 1},
        {"withheld_out": 0},
        {"withheld_bought": 0},
        {"out_shown": 1},
        {"bought_shown": 1},
    ],
)
def test_each_wrong_count_fails_the_proof(change: dict[str, int]) -> None:
    assert PROVEN.ok
    assert not replace(PROVEN, **change).ok


@pytest.mark.slow
@pytest.mark.parametrize("form", ["ensemble", "fused"])
def test_no_list_of_a_server_shows_what_is_gone(
    form: Form,
    repository: Path,
    store: ShopStore,
    tmp_path: Path,
) -> None:
    """Stock and purchases change all the while; the view may be late by seconds."""
    with open_bench(repository, store, folder=tmp_path, form=form) as bench:
        found = asyncio.run(
            prove_truth(
                bench,
                answers=400,
                rate=40.0,
                users=20,
                margin_s=5.0,
                out=15,
                count=4,
                seed=("ensemble", "fused").index(form),
            )
        )
    assert found.ok, found
    assert (found.lists, found.degraded) == (400, 0)
    assert found.purchases > 20
    assert 20 < found.prepared < 300
