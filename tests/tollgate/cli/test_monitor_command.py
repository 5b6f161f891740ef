"""`tollgate monitor` as its user runs it: what it says, writes and exits with."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.support.audit.random_records import REPOSITORY
from tests.support.monitor.sealed_journals import (
    DAY_US,
    Sealed,
    decisions,
    labels_of,
    shifted,
)
from tollgate.cli.app import app

PATIENCE_S = 600.0


def run(state: Path, *arguments: str) -> tuple[int, str]:
    """Run the command on a state folder; exit status, and what it said in one line."""
    known = ("--state", str(state), "--repository", str(REPOSITORY))
    done = CliRunner().invoke(app, ["monitor", *known, "--window", "600", *arguments])
    said = done.output + (str(done.exception) if done.exception else "")
    status = getattr(done.exception, "exit_status", done.exit_code)
    return status, " ".join(said.split())


@pytest.fixture
def calm(tmp_path: Path) -> Path:
    """A state folder whose journal is as training was."""
    Sealed(tmp_path).seal(decisions(1_300))
    return tmp_path


def test_exit_status_tells_drift_from_none(calm: Path) -> None:
    """0 without; 1 with, and the columns are named; files are written either way."""
    page, file = calm / "report.html", calm / "tollgate.prom"
    out = ("--report", str(page), "--metrics", str(file))
    status, said = run(calm, *out)
    assert (status, "0 of 2 windows drifted" in said) == (0, True)
    assert "<h1>No drift</h1>" in page.read_text()
    Sealed(calm).seal(shifted(1_300, first=1_300))
    status, said = run(calm, *out)
    assert (status, "1 of 4 windows drifted" in said or "2 of 4" in said) == (1, True)
    assert "amount drift" in said
    assert "<h1>Drift in fraud</h1>" in page.read_text()
    assert 'name="amount"' in file.read_text()
    assert (page.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o600, 0o644)


def test_all_journals_of_a_state_folder_are_read(calm: Path) -> None:
    """Each in its folder; keys and anchors are not journals; --product picks one."""
    other = Sealed(calm, product="shop", repository=None)
    other.seal(decisions(700, writer="e" * 16))
    status, said = run(calm)
    assert status == 0
    assert "fraud fraud-1: 1,300 decisions" in said
    assert "shop fraud-1" in said
    assert "shop" not in run(calm, "--product", "fraud")[1]
    status, said = run(calm, "--labels", "labels.parquet")
    assert (status, "are of one product" in said) == (2, True)


def test_labels_of_a_file_judge_releases(calm: Path, tmp_path: Path) -> None:
    """By the keys next to the journal; without them it is said what is missing."""
    records = decisions(1_300)
    label = (np.arange(1_300) % 4 == 0).astype(np.int64)
    took_us = np.full(1_300, DAY_US)
    path = labels_of(records, label, tmp_path / "labels.parquet", took_us=took_us)
    status, said = run(calm, "--labels", str(path), "--label-lag", "2d")
    flagged = records.decision > 0
    precision = f"{label[flagged].mean():.3f}"
    assert status == 0
    assert f"fraud-1 1,300 325 0 {precision}" in said
    shutil.rmtree(calm / "journal" / "fraud.keys")
    status, said = run(calm, "--labels", str(path))
    assert (status, "labels need the keys" in said) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--product", "nope"), "'nope' is no product of"),
        (("--folder", "x", "--product", "fraud"), "leave --product out"),
        (("--metrics", "x.txt"), "is not called .prom"),
        (("--report", "/none/x.html"), "/none is not a folder"),
        (("--metrics-port", "9"), "give --every"),
        (("--every", "often"), "--every: 'often' is not a duration"),
        (("--label-lag", "7x"), "--label-lag: '7x' is not a duration"),
        (("--labels", "/none.parquet"), "/none.parquet: cannot be read"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    calm: Path, arguments: tuple[str, ...], words: str
) -> None:
    """Exit status 2, one line."""
    page = calm / "report.html"
    given = (
        arguments if "--report" in arguments else (*arguments, "--report", str(page))
    )
    status, said = run(calm, *given)
    assert status == 2
    assert words in said
    assert not page.exists()


def test_no_decision_at_all_is_said(calm: Path) -> None:
    """A span in which nothing was sealed is no proof that nothing drifts."""
    status, said = run(calm, "--since", "1d")
    assert (status, "no decision" in said) == (0, True)


@pytest.mark.slow
def test_it_repeats_until_it_is_stopped(tmp_path: Path) -> None:
    """
    It begins before there is a journal, and one that is damaged costs no other.

    Metrics are served, drift is said when it begins, SIGTERM is exit status 0.
    """
    calm = tmp_path
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-c", "from tollgate.cli import main; main()", "monitor"),
        *("--state", str(calm), "--repository", str(REPOSITORY)),
        *("--window", "600", "--every", "1s", "--metrics-port", str(port)),
        *("--metrics-host", "127.0.0.2"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=calm)
    try:
        scraped(port, "process_resident_memory_bytes")
        other = Sealed(calm, product="broken", repository=None)
        other.seal(decisions(700, writer="e" * 16))
        (segment,) = other.folder.glob("*.segment.parquet")
        segment.write_bytes(b"PAR1")
        Sealed(calm).seal(decisions(1_300))
        wanted = 'tollgate_monitor_judged_windows{product="fraud",release="fraud-1",'
        assert f'{wanted}window="decisions"}} 2.0' in scraped(port, wanted)
        Sealed(calm).seal(shifted(1_300, first=1_300))
        drift = 'tollgate_monitor_drift{kind="feature",name="amount",product="fraud",'
        until_s = time.monotonic() + PATIENCE_S
        while f'{drift}release="fraud-1",window="decisions"}} 1.0' not in scraped(
            port, drift
        ):
            assert time.monotonic() < until_s
            time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGTERM)
        said = " ".join(process.communicate(timeout=PATIENCE_S)[1].split())
    assert process.returncode == 0
    assert "drift: fraud fraud-1, decisions: amount" in said
    assert said.count("holds no journal") == 1
    assert said.count(f"{segment.name}: cannot be read") == 1


def scraped(port: int, wanted: str) -> str:
    """Scrape as soon as there is something."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics") as page:
                text = str(page.read().decode())
            if wanted in text:
                return text
        except OSError:
            pass
        assert time.monotonic() < until_s
        time.sleep(0.2)
