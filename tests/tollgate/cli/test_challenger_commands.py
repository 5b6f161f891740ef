"""`tollgate challenger …`, as a person types it, on decisions in a real stream."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import redis

from tests.support.challenger.trial_repository import (
    EASY_GATES,
    STREAM,
    begin,
    gates,
    make_repository,
    put,
    rows,
    send,
    trial_state,
)
from tests.support.checkout import IMPORT_PATH
from tollgate.challenger.decision_counts import ALL, Arm, Group, Pairs
from tollgate.challenger.trials import TrialState, folder_of, save, trial_of
from tollgate.repository.releases import trial_changes
from tollgate.repository.releases.release_file import read_release
from tollgate.repository.releases.release_history import read_history
from tollgate.repository.remote.mirror import Mirror
from tollgate.repository.remote.objects import Objects
from tollgate.repository.snapshot import RepositorySnapshot

pytestmark = pytest.mark.slow

CODE = "from tollgate.cli import main; main()"

PLACES = {
    "PATH": "/usr/bin:/bin",
    "PYTHONPATH": IMPORT_PATH,
    "COLUMNS": "180",
    "USER": "ada",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The product with challengers, and gates that let all pass."""
    made = make_repository(tmp_path)
    gates(made, EASY_GATES)
    return made


def line(repository: Path, words: tuple[str, ...]) -> list[str]:
    """Write a command as a list."""
    named = any(word.startswith("--repository=") for word in words)
    places = [] if named else [f"--repository={repository}"]
    if words[0] == "challenger":
        places.append(f"--state={repository.parent / 'state'}")
    return [sys.executable, "-c", CODE, *words, *places]


def tollgate(
    repository: Path, *words: str, status: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends with this status."""
    done = subprocess.run(
        line(repository, words),
        capture_output=True,
        text=True,
        check=False,
        cwd=repository.parent,
        env={**PLACES, **environment},
    )
    assert done.returncode == status, done.stderr
    return done


def start(repository: Path, *words: str, status: int = 0, **environment: str) -> str:
    """Begin a trial; what it said."""
    command = ("challenger", "start", "--reason=try it", *words)
    done = tollgate(repository, *command, status=status, **environment)
    return done.stdout + done.stderr


def test_a_whole_life(
    repository: Path, store_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """Shadow, report, canary, raise, promote, and back by a broken gate."""
    run = ("challenger", "run", f"--journal-url={store_url}", "--until-idle")
    output = start(repository, "--set=model=2")
    assert "on trial fraud-2, shadow" in output
    nothing = tollgate(repository, "challenger", "report", "--json").stdout
    part = json.loads(nothing, parse_constant=pytest.fail)
    assert (part["rows"], part["psi"]["value"]) == (0, None)
    refused = start(repository, "--set=model=2", "--mode=canary", status=2)
    assert "fraud-2 was no shadow of fraud-1 yet" in refused
    send(redis_client, rows(repository, 40))
    assert "counted 40 decisions" in tollgate(repository, *run).stdout
    refused = start(repository, "--set=model=2", "--mode=canary", status=2)
    assert "its shadow has not passed: flips_share waits" in refused
    send(redis_client, rows(repository, 160, first=40))
    tollgate(repository, *run)
    picture = tmp_path / "report.png"
    shown = tollgate(repository, "challenger", "report", f"--picture={picture}").stdout
    assert "shadow: fraud-2 next to fraud-1" in shown
    assert "200 rows decided by both" in shown
    assert picture.read_bytes()[:4] == b"\x89PNG"
    report = json.loads(tollgate(repository, "challenger", "report", "--json").stdout)
    assert report["parts"][0]["rows"] == 200
    assert sum(map(sum, report["matrix"])) == 200
    start(repository, "--set=model=2", "--mode=canary", "--percent=5")
    tollgate(repository, "challenger", "raise", "--percent=20", "--reason=well")
    tollgate(repository, "challenger", "promote", "--reason=it is better")
    assert read_release(repository, product="fraud").name == "fraud-2"
    late = rows(
        repository, 150, release="fraud-2", degraded=dict.fromkeys(range(50), 1)
    )
    late_us = int(np.datetime64("2099-01-01", "us").astype(int))
    send(
        redis_client,
        msgspec.structs.replace(late, decided_us=late_us + np.arange(150)),
    )
    done = tollgate(repository, *run)
    assert "back from fraud-2 to fraud-1: degraded_share broken" in done.stderr
    assert read_release(repository, product="fraud").name == "fraud-1"
    lines = tollgate(repository, "release", "history").stdout.splitlines()[1:]
    assert [" ".join(one.split()[2:5]) for one in lines] == [
        "activate fraud-1 tollgate",
        "challenger start fraud-2",
        "challenger start fraud-2",
        "challenger raise fraud-2",
        "promote fraud-2 fraud-1",
        "rollback fraud-1 fraud-2",
    ]


def test_a_broken_gate_ends_a_trial_and_the_report_says_so(
    repository: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """Exit status 1; what is on trial no more can be looked at by its name."""
    gates(repository, "min_rows: 100\nflips_share: 0.01\np99_ms: null\n")
    start(repository, "--set=decision=2")
    send(redis_client, rows(repository, 300))
    done = tollgate(
        repository, "challenger", "run", f"--journal-url={store_url}", "--until-idle"
    )
    assert "stopped fraud-2: flips_share broken" in done.stderr
    assert read_release(repository, product="fraud").challenger is None
    shown = tollgate(repository, "challenger", "report", "fraud-2", status=1).stdout
    assert "broken" in shown
    assert "fraud-2 is no" not in shown


def test_gates_hold_in_an_object_store_and_a_servers_copy_is_refused(
    repository: Path, store_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """A trial ends in the object store, and is reported from there."""
    gates(repository, "min_rows: 100\nflips_share: 0.01\np99_ms: null\n")
    url = f"--repository=file://{repository}"
    start(repository, "--set=decision=2", url)
    send(redis_client, rows(repository, 300))
    mirror = Mirror(
        Objects(f"file://{repository}"), folder=tmp_path / "mirror", product="fraud"
    )
    mirror.begin()
    run = ("challenger", "run", f"--journal-url={store_url}", "--until-idle")
    copy = f"--repository={mirror.folder}"
    refused = tollgate(repository, *run, copy, status=2).stderr
    assert "is a server's copy of an object store, and nobody follows it" in refused
    refused = tollgate(
        repository, "challenger", "stop", "--reason=x", copy, status=2
    ).stderr
    assert "name the store" in refused
    assert read_release(mirror.folder, product="fraud").challenger is not None
    done = tollgate(repository, *run, url)
    assert "stopped fraud-2: flips_share broken" in done.stderr
    assert read_release(repository, product="fraud").challenger is None
    shown = tollgate(repository, "challenger", "report", url, status=1).stdout
    assert "300 rows decided by both" in shown


def test_the_shadow_that_counts_is_the_last_whatever_the_clock_said(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One began in 2099, by a clock that was set back since, and has passed."""
    counts = folder_of(repository.parent / "state", "fraud")
    for began, rows_each in (("2099-01-01T00:00:00Z", 1_000), (None, 0)):
        if began:
            monkeypatch.setattr(
                trial_changes, "now_text", lambda: "2099-01-01T00:00:00Z"
            )
        begin(repository, fraud_model=2)
        monkeypatch.undo()
        current = read_release(repository, product="fraud")
        pairs = Pairs(rows=rows_each, scored=rows_each)
        arm = Arm(rows=rows_each)
        groups = {ALL: Group(pairs=pairs, champion=arm, challenger=arm)}
        save(counts, TrialState(trial_of(current), groups=groups))
        if began:
            ended = trial_changes.without_challenger(
                RepositorySnapshot(repository), product="fraud"
            )
            put(repository, ended, "challenger stop", current)
    refused = start(repository, "--set=model=2", "--mode=canary", status=2)
    assert "its shadow has not passed: flips_share waits" in refused


def proposed(output: str) -> str:
    """Read the name that a proposal printed."""
    (line,) = (one for one in output.splitlines() if one.startswith("proposed  "))
    return line.split()[1]


def test_a_second_person_confirms_a_canary_and_no_shadow(repository: Path) -> None:
    """What answers nobody needs nobody; what does is proposed."""
    asked = {"TOLLGATE_REQUIRE_APPROVAL": "1"}
    start(repository, "--set=model=2", **asked)
    canary = ("--set=model=2", "--mode=canary", "--force")
    name = proposed(start(repository, *canary, **asked))
    there = read_release(repository, product="fraud").challenger
    assert there is not None
    assert there.mode == "shadow"
    tollgate(repository, "release", "approve", name, "--actor=bob")
    last = read_history(repository, "fraud")[-1]
    assert (last.action, last.approver, last.reason) == (
        "challenger start",
        "bob",
        "forced: try it",
    )
    tollgate(repository, "challenger", "stop", "--reason=enough", **asked)
    assert read_release(repository, product="fraud").challenger is None


def test_who_confirms_a_share_confirms_no_other(repository: Path) -> None:
    """Somebody proposes another one while the first is looked at, by its name."""
    asked = {"TOLLGATE_REQUIRE_APPROVAL": "1"}
    canary = ("--set=model=2", "--mode=canary", "--force")
    output = start(repository, *canary, "--percent=5", **asked)
    assert "\non trial" not in output
    name = proposed(output)
    shown = tollgate(repository, "release", "show", name).stdout
    assert json.loads(shown)["challenger"]["percent"] == 5
    output = tollgate(repository, "release", "diff", "fraud-1", name).stdout
    assert "fraud_model  1 -> 2" in output
    start(repository, *canary, "--percent=100", **asked)
    approve = ("release", "approve", name, "--actor=bob")
    assert f"waits, not {name}" in tollgate(repository, *approve, status=2).stderr
    assert read_release(repository, product="fraud").challenger is None


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("start", "--set=model=9"), "no such version directory"),
        (("start", "--set=model=1"), "that is fraud-1, which answers already"),
        (("start", "--set=decision=2", "--mode=canary"), "shadow only, until it is"),
        (("raise", "--percent=9"), "no challenger is on trial next to fraud-1"),
        (("stop",), "no challenger is on trial"),
        (("promote",), "no challenger is on trial"),
    ],
)
def test_bad_words_are_one_line_and_change_nothing(
    repository: Path, words: tuple[str, ...], problem: str
) -> None:
    """Exit status 2."""
    before = (repository / "fraud/release.json").read_bytes()
    done = tollgate(repository, "challenger", *words, "--reason=x", status=2)
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (repository / "fraud/release.json").read_bytes() == before
    assert not (repository / "fraud/history.jsonl").exists()


def test_killed_workers_count_every_row_once(
    repository: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """SIGKILL at moments drawn by a seed, while rows come in; then one works on."""
    start(repository, "--set=decision=2")
    command = line(repository, ("challenger", "run", f"--journal-url={store_url}"))
    chance = np.random.default_rng(11)
    sent = 0
    for _ in range(3):
        worker = subprocess.Popen(
            [*command, "--judge-every=1s"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=repository.parent,
            env=PLACES,
        )
        try:
            for _ in range(6):
                send(redis_client, rows(repository, 25, first=sent))
                sent += 25
            wait_until_taken(redis_client, worker)
            time.sleep(float(chance.uniform(0, 1.5)))
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
    tollgate(
        repository, "challenger", "run", f"--journal-url={store_url}", "--until-idle"
    )
    found = trial_state(repository)
    assert found.groups[ALL].pairs.rows == sent
    assert list(found.seen.values()) == [[(0, sent - 1)]]


def wait_until_taken(client: redis.Redis, worker: subprocess.Popen[bytes]) -> None:
    """Wait until the worker has taken all there is."""
    while worker.poll() is None:
        last = client.xinfo_stream(STREAM)["last-generated-id"]
        groups = {one["name"]: one for one in client.xinfo_groups(STREAM)}
        group = groups.get(b"challenger")
        if group is not None and group["last-delivered-id"] == last:
            return
        time.sleep(0.02)
    raise AssertionError("the worker ended by itself")
