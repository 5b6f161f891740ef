"""The trial worker with a real stream: each row counts once, also after a kill."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
import redis
from rich.console import Console

from tests.support.challenger.trial_repository import (
    EASY_GATES,
    SHIFT,
    STREAM,
    begin,
    gates,
    grow,
    make_repository,
    promote,
    rows,
    send,
    trial_state,
    work,
)
from tests.support.policy.own_outcomes import OWN, with_own_outcomes
from tests.support.server.next_release import next_release
from tollgate.audit.worker.chunk_source import ChunkSource
from tollgate.challenger.challenger_worker import TrialMetrics, TrialWorkerCounts
from tollgate.challenger.decision_counts import ALL, group_names
from tollgate.challenger.trial_gates import Gates, judge
from tollgate.challenger.trial_report import make_report
from tollgate.challenger.trials import current_trials
from tollgate.cli.operations.challenger_commands import report_tables
from tollgate.journal.stream_entries import CHUNK_FIELD
from tollgate.repository.releases.release_file import read_release, write_release
from tollgate.repository.releases.release_history import read_history


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return the product with challengers, and gates that let all pass."""
    made = make_repository(tmp_path)
    gates(made, EASY_GATES)
    return made


class KilledError(BaseException):
    """Simulates SIGKILL."""


def test_shadow_scores_like_its_model(
    repository: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """Model 2 adds to the logarithmic odds: both means by hand, no row missing."""
    begin(repository, fraud_model=2)
    records = rows(repository, 300)
    send(redis_client, records)
    assert work(repository, store_url).tally.rows == 300
    group = trial_state(repository).groups[ALL]
    p = records.probabilities[:, 1].astype(np.float64)
    q = 1 / (1 + (1 - p) / p * np.exp(-SHIFT))
    assert group.pairs.rows == group.champion.rows == group.challenger.rows == 300
    assert group.champion.score_sum == pytest.approx(p.sum(), rel=1e-6)
    assert group.challenger.score_sum == pytest.approx(q.sum(), rel=1e-4)
    assert group.pairs.shift_squares == pytest.approx(((q - p) ** 2).sum(), rel=1e-3)
    review, decline = (p >= 0.35) & (p < 0.8), p >= 0.8
    assert group.champion.errors == 0
    assert group.champion.decisions[2] >= decline.sum()
    assert group.champion.decisions[1] + group.champion.decisions[2] >= review.sum()
    assert sum(group.pairs.cents) == records.cents.sum()
    took = records.features_us.astype(int) + records.model_us + records.decision_us
    assert sum(group.champion.times) == 300
    p99_ms = {one.gate: one for one in judge(trial_state(repository), Gates())}[
        "p99_ms"
    ]
    assert p99_ms.rows == 300
    assert took.max() < 20_000


def test_groups_add_up_to_all(
    repository: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """Each row is in one group of each kind: by segment and by amount."""
    begin(repository, fraud_decision=2)
    send(redis_client, rows(repository, 200), rows(repository, 100, first=200))
    work(repository, store_url)
    found = trial_state(repository).groups
    for kind in ("segment", "amount"):
        own = [group for name, group in found.items() if name.startswith(kind)]
        assert sum(one.pairs.rows for one in own) == 300
        matrix = np.sum([one.pairs.matrix for one in own], axis=0)
        assert matrix.tolist() == found[ALL].pairs.matrix
    moved = np.array(found[ALL].pairs.matrix).reshape(3, 3)
    assert moved[0, 1] > 0  # policy 2 reviews more
    assert np.tril(moved, -1).sum() == 0  # and nothing less


def test_a_trial_is_counted_in_the_products_words(
    repository: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """The worker's metrics, and the report with its tables."""
    for path in repository.glob("fraud_decision/*/policy.yaml"):
        path.write_text(with_own_outcomes(path.read_text()))
    next_release(repository)
    begin(repository, fraud_decision=2)
    records = rows(repository, 200, release="fraud-2")
    send(redis_client, records)
    work(repository, store_url)
    state = trial_state(repository)
    assert state.outcomes == OWN
    made = TrialMetrics("fraud", trials=lambda: [state], tally=TrialWorkerCounts)
    counted = {
        one.labels["outcome"]: one.value
        for family in made.collect()
        for one in family.samples
        if one.name == "tollgate_trial_decisions" and one.labels["arm"] == "champion"
    }
    levels = np.bincount(records.decision, minlength=3).tolist()
    assert counted == dict(zip(OWN, map(float, levels), strict=True))
    report = make_report(state, Gates())
    shares = {word: one.value for word, one in report.champion.shares.items()}
    assert shares == {word: counted[word] / 200 for word in OWN}
    assert report.outcomes == OWN
    console = Console(record=True, width=200, file=io.StringIO())
    for table in report_tables(report, amount=True):
        console.print(table)
    shown = console.export_text()
    assert re.search(r"fraud-2 ╲ fraud-3 +normal +watch +alarm", shown)
    assert "approve" not in shown


def test_amount_bands_start_at_their_limits() -> None:
    """999 cents are below 10, 1,000 are not."""
    cents = np.array([0, 999, 1_000, 4_999, 5_000, 20_000, 99_999, 100_000])
    found = group_names(np.zeros(8, np.uint8), cents, segments=["other"])
    assert {name: np.flatnonzero(own).tolist() for name, own in found.items()} == {
        "all": list(range(8)),
        "segment other": list(range(8)),
        "amount below 10": [0, 1],
        "amount 10 to 50": [2, 3],
        "amount 50 to 200": [4],
        "amount 200 to 1,000": [5, 6],
        "amount from 1,000": [7],
    }
    without = group_names(np.zeros(8, np.uint8), cents, segments=["other"], money=False)
    assert list(without) == ["all", "segment other"]


@pytest.mark.parametrize("step", ["saved", "acknowledged"])
def test_killed_worker_counts_each_row_once(
    repository: Path, store_url: str, redis_client: redis.Redis, step: str
) -> None:
    """Killed around its acknowledgement; also a chunk that a writer sent twice."""
    begin(repository, fraud_decision=2)
    first, second = rows(repository, 60), rows(repository, 60, first=60)
    send(redis_client, first, second)

    def kill(reached: str) -> None:
        if reached == step:
            raise KilledError

    with pytest.raises(KilledError):
        work(repository, store_url, on_step=kill)
    send(redis_client, second, rows(repository, 60, first=120))
    work(repository, store_url)
    found = trial_state(repository)
    assert found.groups[ALL].pairs.rows == 180
    assert found.seen == {first.writer: [(0, 179)]}
    assert redis_client.xpending(STREAM, "challenger")["pending"] == 0


def test_trial_does_not_block_the_journal(
    repository: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """Sealed entries leave the stream, read by a trial or not."""
    begin(repository, fraud_decision=2)
    send(redis_client, rows(repository, 20))
    work(repository, store_url)
    assert redis_client.xlen(STREAM) == 1  # it removes nothing itself
    send(redis_client, rows(repository, 20, first=20))
    journal = ChunkSource(store_url, product="fraud")
    taken = journal.poll(most=10, wait_s=0.1)
    journal.acknowledge([one.id for one in taken])
    assert redis_client.xlen(STREAM) == 0
    redis_client.xadd(STREAM, {CHUNK_FIELD: b"no chunk"})
    send(redis_client, rows(repository, 20, first=40))
    tally = work(repository, store_url).tally
    assert (tally.rows, tally.unreadable) == (20, 1)
    journal.close()


def test_broken_gate_stops_the_challenger(
    repository: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """release.json has no challenger any more; the history has gate, figures, limit."""
    gates(repository, "min_rows: 100\nflips_share: 0.02\np99_ms: null\n")
    before = read_release(repository, product="fraud")
    begin(repository, fraud_decision=2)
    send(redis_client, rows(repository, 99))
    assert work(repository, store_url).tally.ended == []  # too few to judge
    send(redis_client, rows(repository, 200, first=99))
    (done,) = work(repository, store_url).tally.ended
    assert done.startswith("stopped fraud-2: flips_share broken: ")
    last = read_history(repository, "fraud")[-1]
    assert (last.action, last.actor) == ("challenger stop", "challenger run")
    assert last.reason.endswith("in 299 rows, allowed 2 %")
    assert read_release(repository, product="fraud") == before
    assert work(repository, store_url).tally.rows == 0  # nobody is on trial


def test_arms_of_a_canary_differ_by_release(
    repository: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """Each arm has its own rows; rows from before the share started are in none."""
    changed = begin(repository, mode="canary", fraud_model=2)
    assert changed.challenger is not None
    now_us = int(np.datetime64(changed.challenger.time[:-1], "us").astype(int)) + 10**6
    arms = [
        rows(repository, 80),
        rows(repository, 20, release="fraud-2", first=80, degraded={3: 1}),
    ]
    for one in arms:
        late = msgspec.structs.replace(
            one, decided_us=now_us + np.arange(len(one)), writer="b" * 16
        )
        send(redis_client, one, late)
    work(repository, store_url)
    found = trial_state(repository)
    group = found.groups[ALL]
    assert (group.champion.rows, group.challenger.rows) == (80, 20)
    assert (group.champion.degraded, group.challenger.degraded) == (0, 1)
    assert group.pairs.rows == 80
    assert found.other == 100
    assert group.challenger.score_sum == pytest.approx(arms[1].score.sum())
    grow(repository, 20)  # another share, other days: counted from zero
    work(repository, store_url)
    assert read_release(repository, product="fraud").challenger is not None


def test_promoted_release_with_a_broken_gate_is_rolled_back(
    repository: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """During its watch, by its own rows; the reason is in the history."""
    begin(repository, fraud_model=2)
    send(redis_client, rows(repository, 100))
    work(repository, store_url)
    promote(repository)
    now = read_release(repository, product="fraud")
    assert (now.name, now.challenger) == ("fraud-2", None)
    late_us = int(np.datetime64("2099-01-01", "us").astype(int))
    own = rows(repository, 200, release="fraud-2", degraded=dict.fromkeys(range(60), 1))
    own = msgspec.structs.replace(own, decided_us=late_us + np.arange(200))
    send(redis_client, own)
    (done,) = work(repository, store_url).tally.ended
    assert done.startswith("back from fraud-2 to fraud-1: degraded_share broken: 30 %")
    assert read_release(repository, product="fraud").name == "fraud-1"
    assert [
        (one.action, one.release.name) for one in read_history(repository, "fraud")
    ] == [
        ("activate", "fraud-1"),
        ("challenger start", "fraud-1"),
        ("promote", "fraud-2"),
        ("rollback", "fraud-1"),
    ]
    group = trial_state(repository, "watch").groups[ALL]
    assert group.pairs.rows == group.challenger.rows == 200
    assert group.pairs.shift_sum > 0  # of the promoted one over the one before


def test_promoted_release_stays_after_its_watch(
    repository: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """A watch of zero length does nothing."""
    gates(repository, EASY_GATES + "watch_after: 0s\n")
    begin(repository, fraud_model=2)
    promote(repository)
    send(redis_client, rows(repository, 60, release="fraud-2"))
    assert work(repository, store_url).tally.rows == 0
    assert read_release(repository, product="fraud").name == "fraud-2"


def test_unfinished_change_does_not_end_a_watch(
    repository: Path,
) -> None:
    """A command that stopped between history and release.json ends no watch."""
    begin(repository, fraud_model=2)
    promote(repository)
    there = begin(repository, fraud_decision=2)
    promote(repository)
    write_release(repository, there)  # as if the disk was full just then
    trials = current_trials(repository, product="fraud", watch_s=60, now_s=0)
    assert [(one.mode, one.champion, one.challenger) for one in trials] == [
        ("shadow", "fraud-2", "fraud-3"),
        ("watch", "fraud-1", "fraud-2"),
    ]


def test_documented_redis_rights_suffice(
    repository: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """A user with these commands, on this key, counts."""
    paper = (Path(__file__).parents[3] / "docs" / "challenger.md").read_text()
    (line,) = re.findall(r"`(ACL SETUSER .*)`", paper)
    command = line.replace("PRODUCT", "fraud").replace("PASSWORD", "secret").split()
    begin(repository, fraud_decision=2)
    send(redis_client, rows(repository, 20))
    redis_client.execute_command(*command)
    url = store_url.replace("unix://", f"unix://{command[2]}:secret@")
    try:
        tally = work(repository, url).tally
    finally:
        redis_client.execute_command("ACL", "DELUSER", command[2])
    assert (tally.rows, tally.retries) == (20, 0)
