"""Tests of the whole measurement, against the real server."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from loadtests.h2load import LimitReport, main


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("h2load") and shutil.which("cc")),
    reason="h2load or a C compiler is missing: apt-get install nghttp2-client gcc",
)
def test_every_request_is_a_purchase_of_its_own(tmp_path: Path) -> None:
    """Answers are decisions, and what was sent was written."""
    out = tmp_path / "report.md"
    flags = "--only 1-row-16 --seconds 1 --warm-up 0.5 --runs 1 --customers 200"
    arguments = [*flags.split(), "--terminals", "400", "--out", str(out)]
    assert main(arguments) == 0
    report = msgspec.json.decode(
        out.with_suffix(".json").read_bytes(), type=LimitReport
    )
    ((run,),) = (measured.runs for measured in report.measured)
    assert run.tally.requests > 0
    assert run.tally.failures == {}
    assert run.tally.rows == run.tally.requests
    assert run.new_share == 1.0
    assert run.continued_bodies == 0
    # A slow moment of the machine may leave rows unwritten, and says so.
    assert run.writes_per_purchase > 1.8 or run.tally.degraded_rows
    assert run.latency.p50_ms <= run.latency.p99_ms <= run.latency.max_ms
    assert "| 1 | 16 (4 x 4) |" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nothing"], "--only: 'nothing' is none of 1-row-1,"),
        (["--seconds", "0"], "--seconds: 0.0 is below 0.1"),
        (["--runs", "0"], "--runs: 0 is below 1"),
        (["--out", "/no/such/folder/x.md"], "--out: /no/such/folder is not a folder"),
    ],
)
def test_a_wrong_flag_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, and nothing is started."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
