"""The settings to try, next to the current ones."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tollgate.errors import InputError
from tollgate.tuning.space import (
    KNOBS,
    LOW_LATENCY,
    THROUGHPUT,
    Candidate,
    candidates,
    narrowed,
)

BASE = Candidate(delay_us=5000)


def test_candidates_with_one_difference_come_first() -> None:
    """Then others, drawn at random; the same seed draws the same, no one is twice."""
    space = {**THROUGHPUT, "form": ("ensemble",)}
    chosen = candidates(space, BASE, most=40, cores=2, seed=3)
    apart = [
        sum(getattr(one, knob) != getattr(BASE, knob) for knob in KNOBS)
        for one in chosen
    ]
    # delay 4 others, preferred 3, threads 1, instances 3.
    assert apart[:11] == [1] * 11
    assert all(number > 1 for number in apart[11:])
    assert len({*chosen}) == len(chosen) == 40
    assert BASE not in chosen
    assert chosen == candidates(space, BASE, most=40, cores=2, seed=3)
    assert chosen != candidates(space, BASE, most=40, cores=2, seed=4)


def test_the_other_form_comes_first_then_one_knob_of_each_form() -> None:
    """A fused product reads its queue delay and threads; the steps' settings stay."""
    chosen = candidates(THROUGHPUT, BASE, most=16, cores=2, seed=3)
    fused = [replace(one, form="ensemble") for one in chosen if one.form == "fused"]
    assert chosen[0] == replace(BASE, form="fused")
    assert fused == [
        BASE,
        *(replace(BASE, fused_queue_delay_us=us) for us in (0, 500, 2500)),
        replace(BASE, threads=2),
    ]
    assert len(chosen) - len(fused) == 11


def test_a_fused_product_is_tuned_the_same_way() -> None:
    """Settings of steps are tried as an ensemble only."""
    base = replace(BASE, form="fused", fused_queue_delay_us=700)
    chosen = candidates(THROUGHPUT, base, most=9_999, cores=2, seed=3)
    assert chosen[0] == replace(base, form="ensemble")
    fused = [one for one in chosen if one.form == "fused"]
    assert {(one.fused_queue_delay_us, one.threads) for one in fused} == {
        (us, threads) for us in (0, 500, 1000, 2500) for threads in (1, 2)
    }
    assert {one.delay_us for one in fused} == {BASE.delay_us}
    delays_us = {one.fused_queue_delay_us for one in chosen if one.form == "ensemble"}
    assert delays_us == {700}


def test_the_same_thing_is_tried_once() -> None:
    """A batch that waits for nothing prefers no size, and 32 is the largest anyway."""
    space = {"delay_us": (0,), "preferred": (0, 4, 8)}
    assert candidates(space, BASE, most=9, cores=2, seed=1) == [Candidate(0)]
    space = {"preferred": (0, 32)}
    assert candidates(space, BASE, most=9, cores=2, seed=1) == []


def test_no_more_threads_than_cores() -> None:
    """`tollgate check` would warn of them."""
    space = {"threads": (1, 2, 4), "model_instances": (1, 2)}
    chosen = candidates(space, BASE, most=99, cores=2, seed=1)
    assert {(one.threads, one.model_instances) for one in chosen} == {(2, 1), (1, 2)}


def test_a_knob_that_nobody_names_stays_as_it_is() -> None:
    """Also at a value that the preset has not."""
    base = Candidate(delay_us=700, features_instances=5)
    chosen = candidates(LOW_LATENCY, base, most=9, cores=2, seed=1)
    assert {one.features_instances for one in chosen} == {5}


def test_values_are_replaced_by_what_is_said() -> None:
    """And only those."""
    said = narrowed(THROUGHPUT, ["delay_us=0,200", "preferred=none,8"])
    assert said == {**THROUGHPUT, "delay_us": (0, 200), "preferred": (0, 8)}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("max_queue_size=4", "knobs: delay_us, preferred"),
        ("delay_us", "is not KNOB=VALUE"),
        ("delay_us=-1", "delay_us: '-1' is not 0 to 100000"),
        ("preferred=33", "preferred: '33' is not 0 to 32"),
        ("threads=0", "threads: '0' is not 1 to 64"),
        ("form=fast", "form: 'fast' is not ensemble or fused"),
        ("model_instances=many", "'many' is not 1 to 32"),
    ],
)
def test_invalid_values_are_refused(said: str, words: str) -> None:
    """Settings that stall a queue have no name here."""
    with pytest.raises(InputError, match=words):
        narrowed(THROUGHPUT, [said])
