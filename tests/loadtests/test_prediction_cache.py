"""A cache is judged by what is found in it and by what it costs to look."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.prediction_cache import (
    Asked,
    PureCache,
    cost_of,
    credit,
    fraud,
    repeated,
    zipf,
)
from loadtests.prediction_cache_served import counters, told
from loadtests.surroundings import CHECKOUT
from tollgate.features.spec import load_spec

REPOSITORY = CHECKOUT / "model_repository"
PAGE = """\
# TYPE nv_cache_num_hits_per_model gauge
nv_cache_num_hits_per_model{model="credit_model",version="1"} 30
nv_cache_num_misses_per_model{model="credit_model",version="1"} 10
nv_inference_count{model="credit_decision",version="1001"} 40
nv_inference_exec_count{model="credit_decision",version="1001"} 8
nv_cpu_utilization 0.5
"""


class Doubling:
    """A pure function that counts the rows it was run for."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, features: np.ndarray) -> np.ndarray:
        self.rows += len(features)
        return features * 2


def rows_of(*values: float) -> np.ndarray:
    """One column of float32."""
    return np.array(values, np.float32)[:, None]


def test_what_is_known_is_not_run_and_answered_in_its_place() -> None:
    """Known, new and known again in one batch."""
    run = Doubling()
    cache = PureCache(run, ttl_us=10)
    assert cache.answer(rows_of(1, 2), now_us=0).tolist() == [[2], [4]]
    assert cache.answer(rows_of(2, 3, 1), now_us=5).tolist() == [[4], [6], [2]]
    assert (run.rows, cache.hits) == (3, 2)


def test_an_answer_is_forgotten_after_its_time_however_often_it_was_given() -> None:
    """10 µs from when it was made: found at 10, not at 11."""
    run = Doubling()
    cache = PureCache(run, ttl_us=10)
    for now_us in (0, 9, 10, 11, 21, 22):
        assert cache.answer(rows_of(7), now_us=now_us).tolist() == [[14]]
    assert run.rows == 3  # at 0, 11 and 22
    assert cache.hits == 3


def test_rows_that_are_equal_in_one_batch_are_kept_once() -> None:
    """Both are run, none was known; when they are forgotten, both are."""
    run = Doubling()
    cache = PureCache(run, ttl_us=10)
    cache.answer(rows_of(1, 1), now_us=0)
    assert (run.rows, cache.hits) == (2, 0)
    cache.answer(rows_of(1), now_us=11)
    assert run.rows == 3


def test_the_share_found_is_of_all_rows() -> None:
    """Of four single rows three are equal; one of them comes soon enough."""
    second = 1_000_000
    time_us = np.array([0, 1, 2, 20]) * second
    asked = Asked("by hand", rows_of(1, 2, 1, 1), time_us)
    cost = cost_of(asked, Doubling(), rows=1)
    assert cost.hits_percent == 25  # the one at 2 s; at 20 s the first is forgotten
    assert cost.plain_us > 0
    assert cost.cached_us > 0


def test_zipf_draws_the_first_most_often() -> None:
    """Twice the rank is drawn 2^-1.1 as often."""
    drawn = np.bincount(zipf(np.random.default_rng(0), among=50, count=200_000))
    assert drawn[1] / drawn[0] == pytest.approx(2**-1.1, rel=0.05)
    assert drawn[7] / drawn[3] == pytest.approx(2**-1.1, rel=0.05)


def test_no_number_is_drawn_more_often_than_allowed() -> None:
    """The first numbers are full; the others still follow their ranks."""
    random = np.random.default_rng(0)
    drawn = np.bincount(zipf(random, among=5_000, count=50_000, most=100))
    assert drawn.sum() == 50_000
    assert drawn.max() == 100
    assert (drawn[:40] == 100).all()
    assert 100 > drawn[400:800].mean() > drawn[2_000:4_000].mean() > 0


def test_rows_asked_again_come_later_and_are_their_share_of_all() -> None:
    """190 rows and 10 again; in the order of time."""
    asked = Asked("rows", rows_of(*range(190)), np.arange(190) * 1_000)
    again = repeated(asked, share=0.05)
    assert len(again.features) == 200
    assert len(np.unique(again.features)) == 190
    assert (np.diff(again.time_us) >= 0).all()


@pytest.mark.slow
def test_purchases_hardly_ever_repeat_and_popular_applications_do() -> None:
    """At 200 a second: fraud below 1 in 100, credit above one half."""
    specs = {
        name: load_spec(REPOSITORY / f"{name}_features" / "1" / "features.yaml")
        for name in ("fraud", "credit")
    }
    purchases = fraud(specs["fraud"], rate=200)
    for name in ("customer_nb_tx_30d", "terminal_nb_tx_30d"):
        counted = purchases.features[:, specs["fraud"].feature_names.index(name)]
        assert counted.max() <= 1_024  # what the store keeps of one id
    payments = cost_of(purchases, Doubling(), rows=1)
    once = credit(specs["credit"], rate=200, popular=False)
    popular = credit(specs["credit"], rate=200, popular=True)
    assert payments.hits_percent < 1
    assert cost_of(once, Doubling(), rows=1).hits_percent < 1
    assert cost_of(popular, Doubling(), rows=1).hits_percent > 50


def test_two_readings_of_tritons_metrics_give_what_lies_between() -> None:
    """30 of 40 found, 5 rows a batch of decisions, 20 µs of processor time a row."""
    after = counters(PAGE)
    assert after["credit_model", "cache_num_hits_per_model"] == 30
    one = told({}, after, product="credit", cpu_s=0.0008, rows=40)
    assert (one.found_percent, one.decided_rows) == (75, 5)
    assert one.cpu_us == pytest.approx(20)
    nothing = told(after, after, product="credit", cpu_s=0.0, rows=40)
    assert (nothing.found_percent, nothing.decided_rows) == (0, 0)
