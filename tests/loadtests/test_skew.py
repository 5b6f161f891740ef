"""The test of hot entities finds each limit that is broken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from loadtests import skew
from loadtests.harness import REPOSITORY
from loadtests.skew import BUSY, Figures, ordinary_ids, skewed_history, to_text

WELL = Figures(
    rows=1_000,
    busy_rows=100,
    different=0,
    marked=0,
    values=50,
    largest={"customer": 4_096, "terminal": 300},
    busy_us=[30.0, 15.0, 12.0],
    ordinary_us=[10.0, 10.0, 10.0],
    redis="6.2.14",
)


def test_limits_are_those_of_the_report() -> None:
    """The ratio is the median over rounds; 1.5 and 4,096 bytes are still good."""
    assert WELL.ratio == 1.5
    assert WELL.ok
    text = to_text(WELL, command="python -m loadtests.skew")
    assert "| busy : ordinary | 1.50 | 1.5 |" in text
    assert "| customer 4,096, terminal 300 | 4,096 |" in text
    assert "busy | 15.0 (12.0 … 30.0) |" in text


@pytest.mark.parametrize(
    "change",
    [
        {"different": 1},
        {"marked": 1},
        {"rows": 0},
        {"largest": {"customer": 300, "terminal": 4_097}},
        {"busy_us": [16.0, 16.0, 1.0]},
    ],
)
def test_a_broken_limit_is_an_exit_status(change: dict[str, object]) -> None:
    """Each alone is enough."""
    assert not replace(WELL, **change).ok


def test_history_is_skewed_and_has_a_busy_id(tmp_path: Path) -> None:
    """1,000 purchases a second, in order; the commonest id has most of the others."""
    spec = skew.spec_with_hop(REPOSITORY, tmp_path, "1h")
    assert all(entity.tiles for entity in spec.entities)
    history = skewed_history(spec, purchases=5_000, busy_rows=2_000, ids=200, zipf=1.2)
    time_us = history.event_time_us
    assert (np.diff(time_us) >= 0).all()
    assert 29 * 86_400_000_000 < time_us[-1] - time_us[0] < 30 * 86_400_000_000
    customers = np.array(history.entity_id["customer_id"])
    busy_us = time_us[customers == BUSY]
    assert len(busy_us) == 2_000
    assert busy_us[-1] - busy_us[0] == 1_999_000
    ids, counts = np.unique(customers[customers != BUSY], return_counts=True)
    assert ids[counts.argmax()] == b"c1"
    assert counts.max() > 20 * np.median(counts)
    ordinary = ordinary_ids(history, 50)
    assert [len(column) for column in ordinary] == [50, 50]
    assert not {BUSY, b"c1", b"t1"} & {one for column in ordinary for one in column}


def test_run_compares_every_vector(capsys: pytest.CaptureFixture[str]) -> None:
    """A small run over a real Redis: the figures, but no judgement of times."""
    options = ["--purchases", "1000", "--busy-s", "1", "--ids", "100"]
    status = skew.main([*options, "--payments", "300", "--rounds", "1"])
    text = capsys.readouterr().out
    assert "| purchases sent | 2,000 | |" in text
    assert "| of the hot entity, 1,000 a second | 1,000 | |" in text
    assert "| vectors that differ from offline | 0 | 0 |" in text
    assert "| rows that are marked | 0 | 0 |" in text
    assert status in (0, 1)
