"""All forms of the engine give the same bits, and a comparison finds other ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from loadtests import equality
from loadtests.equality import (
    FORMS,
    PRODUCTS,
    Result,
    add_records,
    compare,
    differing_bits,
    run_apart,
)
from loadtests.harness import REPOSITORY
from tollgate import Engine
from tollgate.journal.journal_spool import JournalSpool
from tollgate.load.synthetic import synthetic_purchases
from tollgate.repository.releases.served_versions import served_spec

NOW_US = time.time_ns() // 1000
ROWS = 1_000  # of each product


@pytest.mark.slow
@pytest.mark.parametrize("product", PRODUCTS)
def test_every_form_gives_the_same_bits(product: str) -> None:
    """Features, answers and records; with compiled loops, and with NumPy."""
    numbers = {"rows": ROWS, "seed": 2, "newest_us": time.time_ns() // 1000}
    wanted = run_apart("ensemble", "compiled", product, **numbers)
    assert_everything_happens(wanted, product)
    others = [(form, "compiled") for form in FORMS[1:]]
    others += [(form, "numpy") for form in ("ensemble", *FORMS[3:])]
    for form, loops in others:
        found = run_apart(form, loops, product, **numbers)
        assert not compare(found, wanted).any, (form, loops)


def assert_everything_happens(result: Result, product: str) -> None:
    """Rows of every kind are in the traffic: the comparison is not of nothing."""
    texts = [text.decode().split("\0") for _, text in result.answers]
    decisions = Counter(decision for decision, *_ in texts)
    spec = served_spec(REPOSITORY, product=product)
    assert "" in decisions
    assert len(decisions) > 2, decisions  # an error, and two outcomes
    errors = Counter(error.rpartition(": ")[2] for _, _, error, _ in texts)
    numbers = {"is negative", "is not in whole cents"}
    if not spec.amount:
        numbers = {"is not within -1000 … 1000"}
    assert errors.keys() >= numbers | {
        "has 200 bytes, 128 are allowed",
        "is before the year 2000",
        "was decided with other content",
    }
    assert ROWS * 0.7 < len(result.records) < ROWS
    degraded = {bits[4:] for bits, _ in result.answers}
    assert len(degraded) > 1, product  # late events and new ids, or missing fields


def test_a_single_bit_is_found() -> None:
    """In a number, a text, a vector and a record; and what is missing counts whole."""
    one = Result(
        answers=[(b"\x00" * 8, b"approve\0a")],
        features={b"t": b"\x01\x02"},
        records={b"t": b"abc"},
    )
    assert not compare(one, one).any
    other = msgspec.structs.replace
    changed = other(one, answers=[(b"\x00" * 7 + b"\x80", b"approve\0a")])
    assert compare(changed, one).answers == 1
    changed = other(one, answers=[(b"\x00" * 8, b"approve\0c")])
    assert compare(changed, one).answers == 1
    changed = other(one, features={b"t": b"\x01\x03"})
    assert compare(changed, one) == equality.Differences(0, features=1, journal=0)
    changed = other(one, records={b"t": b"abc", b"u": b"ab"})
    assert compare(changed, one).journal == 16
    assert differing_bits(b"ab", b"a") == 8
    with pytest.raises(ValueError, match="zip"):
        compare(other(one, answers=[]), one)


def test_a_chunk_that_came_twice_counts_once(tmp_path: Path) -> None:
    """A writer sends it again if the stream answered late; readers drop it."""
    rows = synthetic_purchases(
        served_spec(REPOSITORY, product="fraud"), 5, seed=1, first_us=NOW_US
    )
    with Engine.open(REPOSITORY, product="fraud", journal=tmp_path) as engine:
        engine.decide(rows)
    spool = JournalSpool(tmp_path / "fraud", product="fraud")
    once, twice = Result(), Result()
    found: list[bytes] = []

    def take(chunks: Sequence[bytes]) -> int:
        found.extend(chunks)
        return len(chunks)

    spool.drain(take, until_s=time.monotonic() + 60)
    add_records(once, found)
    add_records(twice, found * 2)
    assert len(once.records) == 5
    assert twice == once
