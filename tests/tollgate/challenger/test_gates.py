"""Gates: validated like a policy; broken if the whole interval is beyond the limit."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tollgate.challenger.decision_counts import (
    ALL,
    CLUSTERS,
    DEGRADED,
    ERRORS,
    TIME_BINS,
    Arm,
    Group,
    Pairs,
    time_bins,
)
from tollgate.challenger.trial_gates import broken, judge, passed
from tollgate.challenger.trials import Trial, TrialState, load, save
from tollgate.errors import InputError, PolicyError
from tollgate.repository.gate_limits import Gates, read_gates

CHECKOUT = Path(__file__).parents[3]
TRIAL = Trial("fraud", "shadow", "fraud-1", "fraud-2", "2026-11-21T19:00:00Z")


def read(folder: Path, text: str) -> Gates:
    """Read gates from a text."""
    (folder / "fraud").mkdir(exist_ok=True)
    (folder / "fraud/gates.yaml").write_text(text)
    return read_gates(folder, product="fraud")


def trial_state(
    *, rows: int, flipped: int = 0, errors: int = 0, us: int = 100
) -> TrialState:
    """Return the counts of a trial."""
    times = [0] * TIME_BINS
    times[int(time_bins(np.array([us]))[0])] = rows
    arm = Arm(rows=rows, errors=errors, times=times, cluster_rows=evenly(rows))
    put(arm, ERRORS, errors)
    matrix = [rows - flipped, flipped, 0, 0, 0, 0, 0, 0, 0]
    pairs = Pairs(rows=rows, matrix=matrix, scored=rows, cluster_rows=evenly(rows))
    pairs.cluster_flips = evenly(flipped)
    pairs.one_scores[5] = pairs.other_scores[5] = rows
    other = Arm(rows=rows, cluster_rows=evenly(rows))
    return TrialState(TRIAL, {ALL: Group(pairs, other, arm)})


def evenly(rows: int) -> list[int]:
    """Spread rows over the clusters of customers."""
    return [(rows + at) // CLUSTERS for at in range(CLUSTERS)]


def put(arm: Arm, what: int, rows: int) -> None:
    """Mark rows of an arm as hits."""
    arm.cluster_hits[what * CLUSTERS : (what + 1) * CLUSTERS] = evenly(rows)


def state(found: TrialState, gate: str, **gates: object) -> str:
    """Return the state of one gate."""
    verdicts = judge(found, Gates(**gates))  # type: ignore[arg-type]
    return {one.gate: one.state for one in verdicts}[gate]


def test_documented_gates_are_the_defaults(tmp_path: Path) -> None:
    """The documented file equals the defaults."""
    page = (CHECKOUT / "docs" / "challenger.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert read(tmp_path, block) == Gates()
    assert {line.partition(":")[0] for line in block.splitlines()} == {
        *Gates.__struct_fields__
    }


def test_defaults_apply_without_a_file(tmp_path: Path) -> None:
    """Keys that a file leaves out have their defaults; null disables a gate."""
    assert read_gates(tmp_path, product="fraud") == Gates()
    found = read(tmp_path, "version: 1\nflips_share: 0.1\np99_ms: null\n")
    assert found == msgspec.structs.replace(Gates(), flips_share=0.1, p99_ms=None)
    assert found.watch_s == 1_800
    assert "p99_ms" not in [one.gate for one in judge(trial_state(rows=9), found)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("version: 1\nmin_rowz: 5\n", "line 2: min_rowz: Object contains unknown"),
        ("version: 1\n\nflips_share: 1.2\n", "line 3: flips_share: Expected `float`"),
        ("version: 2\n", "line 1: version: Invalid"),
        ("min_rows: 0\n", "line 1: min_rows: Expected `int` >= 1"),
        ("watch_after: soon\n", "line 1: watch_after: 'soon' is no time such as 30m"),
        ("min_rows: 5\nmin_rows: 6\n", "line 2: min_rows stands there twice"),
    ],
)
def test_error_names_key_and_line(tmp_path: Path, text: str, problem: str) -> None:
    """As for a policy."""
    with pytest.raises(PolicyError, match=r"gates\.yaml: ") as caught:
        read(tmp_path, text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("flipped", "found"),
    # Wilson for 1,000 rows: 36 are from 2.6 to 4.9 %, 60 from 4.7 to 7.7 %,
    # 66 from 5.2 to 8.3 %.
    [(36, "holds"), (60, "unsure"), (66, "broken")],
)
def test_gate_breaks_when_the_whole_interval_is_beyond(
    flipped: int, found: str
) -> None:
    """Limit 5 %; an estimate above it is not enough."""
    assert state(trial_state(rows=1_000, flipped=flipped), "flips_share") == found


def test_too_few_rows_break_no_gate() -> None:
    """Even if all of them flipped."""
    assert state(trial_state(rows=999, flipped=999), "flips_share") == "waits"
    assert not passed(judge(trial_state(rows=999), Gates()))


def test_slow_and_failing_challengers_break_their_gates() -> None:
    """60 ms at a limit of 50; 10 rows of 1,000 without a score at 1 of 1,000."""
    assert state(trial_state(rows=5_000, us=60_000), "p99_ms") == "broken"
    assert state(trial_state(rows=5_000, us=40_000), "p99_ms") == "holds"
    assert state(trial_state(rows=1_000, errors=10), "errors_share") == "broken"
    assert passed(judge(trial_state(rows=1_000), Gates()))


def test_store_outage_breaks_no_gate() -> None:
    """Both releases have degraded rows; the difference counts."""
    found = trial_state(rows=1_000)
    assert state(found, "degraded_share") == "holds"
    found.groups[ALL].pairs.degraded_more = 40
    assert state(found, "degraded_share") == "broken"
    canary = msgspec.structs.replace(TRIAL, mode="canary")
    arms = msgspec.structs.replace(found, trial=canary)
    group = arms.groups[ALL]
    put(group.champion, DEGRADED, 900)
    put(group.challenger, DEGRADED, 900)
    assert state(arms, "degraded_share") == "unsure"
    put(group.challenger, DEGRADED, 960)
    assert state(arms, "degraded_share") == "broken"


def test_slow_machine_breaks_no_gate() -> None:
    """A canary at 60 ms breaks 50, unless its champion is at 60 ms, too."""
    canary = msgspec.structs.replace(TRIAL, mode="canary")
    slow = msgspec.structs.replace(trial_state(rows=5_000, us=60_000), trial=canary)
    group = slow.groups[ALL]
    group.champion = trial_state(rows=5_000, us=20_000).groups[ALL].challenger
    assert state(slow, "p99_ms") == "broken"
    group.champion = trial_state(rows=5_000, us=60_000).groups[ALL].challenger
    assert state(slow, "p99_ms") == "unsure"
    watch = msgspec.structs.replace(TRIAL, mode="watch")
    after = msgspec.structs.replace(slow, trial=watch)
    assert state(after, "p99_ms") == "broken"  # nobody knows what was before
    after.baseline = slow.groups
    assert state(after, "p99_ms") == "unsure"


def test_similar_rows_of_one_customer_count_less() -> None:
    """66 flips of 1,000 rows break a gate of 5 %; not if one customer had most."""
    found = trial_state(rows=1_000, flipped=66)
    assert state(found, "flips_share") == "broken"
    found.groups[ALL].pairs.cluster_flips = [16, 50] + [0] * (CLUSTERS - 2)
    found.groups[ALL].pairs.cluster_rows = [16, 50, *evenly(1_000)[2:]]
    assert state(found, "flips_share") == "unsure"


def test_result_of_a_gate_has_figures_and_limit() -> None:
    """One line, for the history."""
    (one,) = broken(judge(trial_state(rows=1_000, flipped=100), Gates()))
    assert str(one) == (
        "flips_share broken: 10 % (8.29 to 12) in 1,000 rows, allowed 5 %"
    )


def test_saved_counts_are_loaded_unchanged(tmp_path: Path) -> None:
    """A trial that started at another time has no counts."""
    found = trial_state(rows=7, flipped=2)
    found.seen = {"a" * 16: [(0, 4), (9, 10)]}
    save(tmp_path, found)
    assert load(tmp_path, TRIAL) == found
    other = msgspec.structs.replace(TRIAL, began="2026-11-21T19:00:01Z")
    assert load(tmp_path, other) == TrialState(other)
    (path,) = tmp_path.glob("*.json")
    path.write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path, TRIAL)
