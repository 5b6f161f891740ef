"""Every call gets its items while the store or a step of a real server fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadtests.ranking.bench import ShopStore, open_bench, out_of_stock
from loadtests.ranking.faults import (
    RANKING_FAULTS,
    FaultOutcome,
    faults_of,
    prove_fault,
)
from tollgate.repository.slo import Form

PROVEN = FaultOutcome(
    fault=RANKING_FAULTS[0],
    calls=10,
    failed=0,
    short=0,
    unnamed=0,
    out_shown=0,
    lists={"server": 9, "client": 1},
    sources={"personal": 36, "client": 4},
    during=(4, 4),
    in_time=10,
    p50_ms=1.0,
    p99_ms=2.0,
    max_ms=2.0,
    load=0.5,
)


@pytest.mark.parametrize(
    "change",
    [{"calls": 0}, {"failed": 1}, {"short": 1}, {"unnamed": 1}, {"out_shown": 1}],
)
def test_each_wrong_count_fails_the_proof(change: dict[str, int]) -> None:
    assert PROVEN.ok
    assert replace(PROVEN, in_time=0).ok  # a machine may be busy
    assert not replace(PROVEN, **change).ok


@pytest.mark.slow
@pytest.mark.parametrize("form", ["ensemble", "fused"])
def test_every_call_gets_its_items(
    form: Form,
    repository: Path,
    store: ShopStore,
    tmp_path: Path,
) -> None:
    """A killed step is missed by its callers; then the server is back."""
    names = ("hung", "killed", "first-step", "last-step")
    faults = [one for one in faults_of(form) if one.name in names]
    with (
        out_of_stock(store, most=10) as out,
        open_bench(
            repository, store, folder=tmp_path, form=form, behind_proxy=True
        ) as bench,
    ):
        for fault in faults:
            found = asyncio.run(
                prove_fault(
                    bench,
                    fault,
                    out=out,
                    answers=150,
                    rate=50.0,
                    deadline_s=0.25,
                    count=4,
                )
            )
            assert found.ok, found
            assert found.calls >= 150
            assert sum(found.sources.values()) == 4 * found.calls
            assert found.lists["server"] > 0
            if fault.step:
                assert found.lists["client"] > 0
