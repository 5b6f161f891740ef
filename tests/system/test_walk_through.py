"""The walk through one machine in docs/operations.md, as it is written there."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.support.checkout import checkout_environment
from tollgate.schema import Degraded
from tollgate.server.processes.environment import free_port

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "operations.md"
FIRST, LAST = "<!-- tests/system/test_walk_through.py", "<!-- the blocks end here -->"
PORTS = ("6380", "8001", "8002", "8003", "8008", "8443", "8444", "9091")
PATIENT_S = 150
MISSED = (
    Degraded.STORE_UNAVAILABLE | Degraded.LAST_KNOWN_VECTOR | Degraded.LOOKUPS_UNREAD
)


def blocks() -> list[str]:
    """Take the commands out of the page, block by block."""
    walk = PAGE.read_text().partition(FIRST)[2].partition(LAST)[0]
    return re.findall(r"^```sh\n(.*?)^```$", walk, re.DOTALL | re.MULTILINE)


def elsewhere(commands: str, folder: Path) -> str:
    """Move the walk to ports and a folder of its own, and do not wait for an alert."""
    for change, new in (
        ("W=.tollgate/walk;", f"W={folder};"),
        (".venv/bin/tollgate", f"{Path(sys.executable).parent}/tollgate"),
        ("interval: 5s", "interval: 1s"),
        # It fires a minute after it waits; tests of the rules go over that minute.
        ("grep firing", "grep pending"),
        *((port, str(free_port())) for port in PORTS),
    ):
        assert change in commands
        commands = commands.replace(change, new)
    return commands


@pytest.mark.system("nginx", "openssl", "prometheus", "promtool", "redis-server")
def test_the_walk_goes_as_the_page_says(tmp_path: Path) -> None:
    """Decisions, metrics, an alert that waits when Redis stops, and all well after."""
    folder = tmp_path / "walk"
    walk = "set -euo pipefail\n" + elsewhere("\n".join(blocks()), folder)
    process = subprocess.Popen(
        ["/bin/bash", "-c", walk],
        cwd=CHECKOUT,
        env=checkout_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=PATIENT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    served = (folder / "serve.log").read_text()
    assert process.returncode == 0, f"{said}\n{served}"
    decided = pl.read_csv(folder / "decided.csv")
    assert decided["decision"].to_list() == ["approve", "decline"]
    assert "LARGE_AMOUNT" in decided["reason_codes"][1]
    # A store that a busy machine lets miss its 5 ms is no fault of the walk.
    other = ~(MISSED | Degraded.COLD_START)
    assert not any(bits & other for bits in decided["degraded"])
    meanwhile = pl.read_csv(folder / "decided-2.csv")
    assert meanwhile["decision"].to_list() == ["approve", "decline"]
    assert all(bits & MISSED for bits in meanwhile["degraded"])
    assert 'tollgate_ready{instance="127.0.0.1:' in said
    assert 'outcome="passed", status="OK"' in said, said
    waits = [line for line in said.splitlines() if line.startswith("ALERTS")]
    # On a busy machine others may wait, too.
    assert any("TollgateStoreBreakerOpen" in line for line in waits)
    assert "spool: applied 2, had already 0" in served
