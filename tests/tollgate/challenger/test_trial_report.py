"""Reports follow from the counts, and counts can be added up."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tollgate.challenger import intervals
from tollgate.challenger.decision_counts import (
    ALL,
    CLUSTERS,
    SCORE_BINS,
    TIME_EDGES_US,
    Decisions,
    Group,
    Groups,
    add_groups,
    count_arm,
    count_pairs,
    only,
    score_bins,
    score_edges,
    time_bins,
)
from tollgate.challenger.trial_gates import Gates
from tollgate.challenger.trial_report import draw, make_report
from tollgate.challenger.trials import Mode, Trial, TrialState
from tollgate.cli.operations.challenger_commands import report_tables


def some(rows: int, *, seed: int) -> tuple[Decisions, Decisions, np.ndarray]:
    """Draw rows that two releases decided, and their amounts in cents."""
    chance = np.random.default_rng(seed)
    scores = chance.beta(0.3, 3, rows)
    scores[0], scores[-1] = 0.0, 1.0
    near = np.clip(scores + chance.normal(0, 0.05, rows), 0, 1)
    failed = chance.random(rows) < 0.05
    cluster = np.arange(rows) % CLUSTERS  # nothing makes the rows of one alike

    def decide(score: np.ndarray, lost: np.ndarray) -> Decisions:
        score = np.where(lost, np.nan, score)
        level = (score >= 0.35).astype(np.uint8) + (score >= 0.8)
        return Decisions(
            decision=level.astype(np.uint8),
            score=score.astype(np.float32),
            failed=lost,
            degraded=lost | (chance.random(rows) < 0.1),
            took_us=chance.integers(0, 90_000, rows),
            cluster=cluster,
        )

    return (
        decide(scores, np.zeros(rows, bool)),
        decide(near, failed),
        chance.integers(0, 200_000, rows),
    )


def group_of(one: Decisions, other: Decisions, cents: np.ndarray) -> Groups:
    """Count all rows."""
    pairs = count_pairs(one, other, cents)
    return {ALL: Group(pairs, count_arm(one, cents), count_arm(other, cents))}


def trial_state(rows: int, mode: Mode = "shadow") -> TrialState:
    """Return the counts of a trial."""
    trial = Trial("fraud", mode, "fraud-1", "fraud-2", "2026-11-21T19:00:00Z")
    return TrialState(trial, group_of(*some(rows, seed=1)) if rows else {})


def test_counts_of_parts_add_up_to_counts_of_all() -> None:
    """However rows are divided; sums of floats except for their last bits."""
    one, other, cents = some(500, seed=2)
    whole = group_of(one, other, cents)
    parts: Groups = {}
    for rows in np.array_split(np.arange(500), 7):
        own = np.isin(np.arange(500), rows)
        parts = add_groups(
            parts, group_of(only(one, own), only(other, own), cents[own])
        )
    a, b = whole[ALL], parts[ALL]
    assert (a.pairs.matrix, a.pairs.cents) == (b.pairs.matrix, b.pairs.cents)
    assert a.challenger.scores == b.challenger.scores
    assert a.champion.times == b.champion.times
    assert a.pairs.shift_squares == pytest.approx(b.pairs.shift_squares)


def test_figures_equal_those_computed_from_rows() -> None:
    """Flips, money, mean shift and shares, counted again by hand."""
    one, other, cents = some(1_000, seed=1)
    made = make_report(trial_state(1_000), Gates())
    (part,) = made.parts
    flipped = one.decision != other.decision
    assert part.flips.value == pytest.approx(flipped.mean())
    alone = intervals.share(int(flipped.sum()), 1_000)
    assert part.flips.low <= alone.low < alone.high <= part.flips.high
    assert part.cents == cents[flipped].sum()
    assert part.money.value == pytest.approx(cents[flipped].sum() / cents.sum())
    up = other.decision > one.decision
    assert (part.stricter, part.milder) == (up.sum(), (flipped & ~up).sum())
    both = ~other.failed
    apart = other.score[both].astype(float) - one.score[both]
    assert part.shift.value == pytest.approx(apart.mean())
    assert made.challenger.errors.value == other.failed.mean()
    share = made.differences["decline"].value
    assert share == pytest.approx(
        (other.decision == 2).mean() - (one.decision == 2).mean()
    )
    p99_ms = np.quantile(one.took_us, 0.99) / 1_000
    assert made.champion.p99_ms.low <= p99_ms <= made.champion.p99_ms.high


def test_arms_of_a_canary_are_compared_as_independent() -> None:
    """By Newcombe; a shadow's by pairs, which is narrower."""
    shadow = make_report(trial_state(1_000), Gates()).differences["review"]
    found = make_report(trial_state(1_000, "canary"), Gates())
    group = trial_state(1_000).groups[ALL]
    alone = intervals.difference(
        group.challenger.decisions[1],
        1_000,
        than=(group.champion.decisions[1], 1_000),
    )
    assert found.differences["review"].value == pytest.approx(alone.value)
    assert found.differences["review"].low <= alone.low
    assert found.differences["review"].high >= alone.high
    assert shadow.value == pytest.approx(found.differences["review"].value)
    assert shadow.high - shadow.low < (
        found.differences["review"].high - found.differences["review"].low
    )


def test_bins_match_their_edges() -> None:
    """Scores from 0 to 1, and times from nothing to a minute."""
    scores = np.concatenate([np.linspace(0, 1, 999), [1e-9, 1 - 1e-9]])
    bins = np.digitize(scores, score_edges())
    inner = np.abs(scores[:, None] - score_edges()).min(axis=1) > 1e-12
    np.testing.assert_array_equal(score_bins(scores)[inner], bins[inner])
    assert score_bins(np.array([0.0, 1.0])).tolist() == [0, SCORE_BINS - 1]
    times = np.array([0, 1, 2, 3, 999, 50_000, 60_000_000])
    place = time_bins(times)
    edges = np.array(TIME_EDGES_US)
    assert (edges[place] <= times).all()
    assert (times < edges[place + 1]).all()


@pytest.mark.parametrize("rows", [0, 1, 600])
def test_report_is_printed_and_drawn_at_any_size(rows: int, tmp_path: Path) -> None:
    """Also without rows; the picture is a PNG."""
    found = trial_state(rows)
    if rows:
        found.groups["segment [/eu]"] = found.groups[ALL]
    made = make_report(found, Gates())
    console = Console(width=200, record=True)
    for table in report_tables(made, amount=True):
        console.print(table)
    text = console.export_text()
    assert f"{rows:,} rows decided by both" in text
    assert "nan" not in text
    assert text.count("segment [/eu]") == bool(rows)
    draw(made, found, tmp_path / "report.png")
    raw = (tmp_path / "report.png").read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    width, _ = struct.unpack(">II", raw[16:24])
    assert width == 1_300
