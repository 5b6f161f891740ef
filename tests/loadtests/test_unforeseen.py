"""The run with unforeseen errors notices each thing that can be amiss."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadtests import unforeseen
from loadtests.servers.injection import Loop, LoopReport, reports
from loadtests.unforeseen import (
    Figures,
    LoopFigures,
    errors_on_pages,
    loop_figures,
    to_text,
)
from tests.support.checkout import checkout_environment

WELL = Figures(
    seconds=60.0,
    rounds=1,
    sent=12_000,
    lost=Counter(),
    unrecorded=0,
    recorded=12_000,
    loops=[LoopFigures("journal", 1, 1, 1, 1)],
    recovered=[],
)

PROCESS = """
import sys, threading, time
from loadtests.servers import injection
from tollgate.worker import Worker, tallies
injection.install(sys.argv[1])
steps, done = [], threading.Event()
loops = [Worker("periodic", lambda: steps.append(1), pause_s=0.01)]
loops.append(Worker("woken", lambda: steps.append(1), pause_s=None))
for one in loops:
    one.start()
print("ready", flush=True)
sys.stdin.readline()
print({name: one.errors for name, one in tallies().items()}, flush=True)
"""


def test_each_loop_of_a_process_gets_one_error_a_round(tmp_path: Path) -> None:
    """Also one that waits to be woken; both work again, and count what they got."""
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=checkout_environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in (1, 2, 3):
            (tmp_path / "round").write_text(str(number))
            wanted = [("periodic", number, True), ("woken", number, True)]
            while [
                (one.name, one.injected, one.alive)
                for report in reports(tmp_path)
                for one in sorted(report.loops, key=lambda one: one.name)
            ] != wanted:
                assert process.poll() is None
        (report,) = reports(tmp_path)
        assert report.pid == process.pid
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "{'periodic': 3, 'woken': 3}\n"


def test_errors_of_a_loop_are_added_up_over_processes_and_pages() -> None:
    """By hand: 2 + 3 of one name; a family that only begins alike is another."""
    pages = [
        'tollgate_background_errors_total{loop="refusals",model="a"} 2\n'
        'tollgate_background_errors_total{model="b",loop="refusals"} 3\n'
        'tollgate_background_failures{loop="refusals",model="a"} 9\n',
        'tollgate_background_errors_total{loop="supervisor"} 4.0\n',
    ]
    assert errors_on_pages(pages) == {"refusals": 5, "supervisor": 4}


def test_loops_of_ended_processes_are_not_alive() -> None:
    """Their injected errors still count."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    found = [
        LoopReport(os.getpid(), [Loop("a", 2, alive=True), Loop("b", 2)]),
        LoopReport(ended.pid, [Loop("a", 1, alive=True), Loop("gone", 1, alive=True)]),
    ]
    assert loop_figures(found, {"a": 3, "b": 1, "gone": 1, "never": 0}) == [
        LoopFigures("a", 3, 3, 1, 1),
        LoopFigures("b", 2, 1, 1, 0),
        LoopFigures("gone", 1, 1, 0, 0),
        LoopFigures("never", 0, 0, 0, 0),
    ]
    ok = [one.ok for one in loop_figures(found, {"a": 3, "b": 1, "gone": 1})]
    assert ok == [True, False, False]


def test_a_run_that_is_well_says_so() -> None:
    """Nothing else leads to exit status 0."""
    assert WELL.ok
    assert to_text(WELL).endswith("no problem found\n")


@pytest.mark.parametrize(
    "amiss",
    [
        {"lost": Counter({"UNAVAILABLE": 1})},
        {"unrecorded": 1},
        {"recovered": ["tritonserver"]},
        {"loops": []},
        {"loops": [LoopFigures("journal", 2, 1, 1, 1)]},
        {"loops": [LoopFigures("journal", 1, 1, 2, 1)]},
        {"loops": [LoopFigures("journal", 0, 0, 1, 1)]},
    ],
    ids=repr,
)
def test_each_thing_that_is_amiss_fails_the_run(
    amiss: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And the report says so."""
    monkeypatch.setattr(unforeseen, "run", lambda options: replace(WELL, **amiss))
    assert unforeseen.main(["--minutes", "1"]) == 1
    assert capsys.readouterr().out.endswith("PROBLEMS FOUND\n")


@pytest.mark.slow
def test_a_server_whose_loops_fail_loses_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three errors in every loop; the names are those of every part of the server."""
    status = unforeseen.main(["--minutes", "0.5", "--every", "10", "--rate", "20"])
    text = capsys.readouterr().out
    assert status == 0, text
    names = {line.split()[0] for line in text.splitlines() if line.endswith("/1")}
    assert names >= {
        *("supervisor", "keep-fraud", "heartbeat-fraud", "converge-fraud"),
        *("arrivals-fraud", "side-port", "metrics-page", "redis-children", "bundle"),
        *("spool-drain-fraud", "journal", "decision-metrics", "feature-metrics"),
        *("spool", "second-lookup"),
    }
