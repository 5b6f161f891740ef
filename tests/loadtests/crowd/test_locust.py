"""
Locust on real servers: its figures are those of the open loop, and where they are not.

Locust patches the process that it runs in, so it runs in one of its own here, too.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from loadtests.paced.raw import Raw, read_raw
from loadtests.run import main as run
from tollgate.load.results import ANSWERED
from tollgate.server.processes.environment import free_port
from tollgate.testing import TestServer

CHECKOUT = Path(__file__).parents[3]
NO_COMPILER = pytest.mark.skipif(
    not shutil.which("cc"), reason="no C compiler: apt-get install gcc libnghttp2-14"
)
PATIENCE_S = 600  # for what a busy machine takes minutes for
RATE, SECONDS = 50, 10
# The server takes this long for each answer: far more than what a busy machine adds to
# the median of either program. docs/loadtests.md has the figures of a quiet machine
# with a real server.
DELAY_MS = 200.0
P50_SHARE = 0.3
# Each program draws some 485 arrivals; this is over four standard deviations.
RATE_SHARE = 0.2
STALL_S = 0.6


class Figures(msgspec.Struct, frozen=True):
    """The figures that one program reports for a ramp, without the warm-up."""

    requests: float
    p50_ms: float
    least_ms: float


@contextmanager
def locust(*words: str, headless: bool = True) -> Iterator[subprocess.Popen[str]]:
    """Run Locust, without its page or with it; nothing of it outlives the context."""
    command = [sys.executable, "-m", "locust", "-f", "loadtests/locustfile.py"]
    plain = ["--headless", "--only-summary"] if headless else []
    with subprocess.Popen(
        [*command, *plain, *words],
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def ended(child: subprocess.Popen[str]) -> str:
    """Wait for its end; what it said."""
    return child.communicate(timeout=PATIENCE_S)[1]


def reported_by_locust(prefix: Path) -> dict[str, str]:
    """Read the summary line of its CSV."""
    with prefix.with_name(prefix.name + "_stats.csv").open() as file:
        (row,) = (one for one in csv.DictReader(file) if one["Name"] == "Aggregated")
    return row


def figures_of(raw: Raw) -> Figures:
    """Read raw results as the report does."""
    calls = raw.calls[raw.calls["due_us"] >= raw.about.scenario.warm_up_s * 1e6]
    took_ms = calls["took_us"] / 1e3
    return Figures(len(calls), float(np.median(took_ms)), float(took_ms.min()))


@NO_COMPILER
def test_a_ramp_agrees_with_the_open_loop(tmp_path: Path) -> None:
    """
    Both at once, on one server: as many requests, as long a median, no less.

    The open loop sends what is due at its time; users who seldom ask come near that.
    """
    size = ["--rate", str(RATE), "--seconds", str(SECONDS)]
    with TestServer() as server:
        server.slow(DELAY_MS / 1000)
        with locust(
            *("--scenario", "ramp", *size, "--per-user", "0.5", "--host", server.url),
            *("--repository", str(CHECKOUT / "model_repository")),
            *("--csv", str(tmp_path / "ramp"), "--raw", str(tmp_path / "crowd.npz")),
        ) as crowd:
            words = ["--customers", "60", "--terminals", "80"]
            out = ["--grpc-url", server.url, "--out", str(tmp_path)]
            assert run(["ramp", *size, *words, *out]) == 0
            said = ended(crowd)
    assert crowd.returncode == 0, said
    raw = read_raw(tmp_path / "crowd.npz")
    assert raw.about.kinds == (ANSWERED,)
    assert (raw.calls["decided"] == 1).all()
    users = figures_of(raw)
    loop = figures_of(read_raw(tmp_path / f"ramp-{RATE}x1-1.npz"))
    assert min(users.least_ms, loop.least_ms) >= DELAY_MS
    assert abs(users.requests / loop.requests - 1) <= RATE_SHARE
    low_ms, high_ms = sorted((users.p50_ms, loop.p50_ms))
    assert high_ms <= (1 + P50_SHARE) * low_ms
    reported = reported_by_locust(tmp_path / "ramp")
    # What Locust writes is what the raw result has, in its whole milliseconds: up to
    # 100 each, then tens, then hundreds. A request at the edge may count or not.
    assert abs(float(reported["50%"]) - users.p50_ms) <= 0.05 * users.p50_ms + 1
    assert abs(int(reported["Request Count"]) / users.requests - 1) <= RATE_SHARE / 2


def test_a_stall_is_seen_by_each_user_once(tmp_path: Path) -> None:
    """
    The closed loop: who waits does not ask, so what was due meanwhile is left out.

    Eight users, 80 requests a second. An open loop has as many late answers as were
    due in the stall; these have eight, however long it takes.
    """
    with TestServer() as server:
        words = ["--scenario", "steady", "--rate", "80", "--per-user", "10"]
        with locust(
            *(*words, "--seconds", "10", "--host", server.url),
            *("--repository", str(CHECKOUT / "model_repository")),
            *("--raw", str(tmp_path / "crowd.npz")),
        ) as crowd:
            wait_for(lambda: len(server.asked) >= 24, crowd)
            server.stall()
            before = len(server.asked)
            wait_for(lambda: len(server.asked) >= before + 8, crowd)
            time.sleep(STALL_S)  # a longer wait, on a busy machine, changes nothing
            came = len(server.asked) - before
            server.heal()
            said = ended(crowd)
    # A request that came before the stall may be counted after it, and its user's next.
    assert 8 <= came <= 2 * 8 < STALL_S * 80, said
    calls = read_raw(tmp_path / "crowd.npz").calls
    assert len(calls) <= len(server.asked)
    assert calls["took_us"].max() >= STALL_S * 1e6


def wait_for(done: Callable[[], bool], child: subprocess.Popen[str]) -> None:
    """Wait until something is so, as long as Locust runs."""
    while not done():
        assert child.poll() is None, ended(child)
        time.sleep(0.025)


def test_a_mix_of_rows_is_told_by_kind(tmp_path: Path) -> None:
    """Poisoned requests fail under the name of the open loop; the rest is decided."""
    with (
        TestServer() as server,
        locust(
            *("--scenario", "poison-mix", "--rate", "120", "--seconds", "4"),
            *("--mix", "fraud=3,fraud:4=1", "--host", server.url),
            *("--repository", str(CHECKOUT / "model_repository")),
            *("--raw", str(tmp_path / "crowd.npz"), "--csv", str(tmp_path / "mix")),
        ) as crowd,
    ):
        said = ended(crowd)
    raw = read_raw(tmp_path / "crowd.npz")
    calls, kinds = raw.calls, np.array(raw.about.kinds)[raw.calls["kind"]]
    assert set(kinds) == {ANSWERED, "INVALID_ARGUMENT"}, said
    assert set(calls["rows"]) == {1, 4}
    all_bad = calls["poisoned"] == calls["rows"]
    assert (kinds[all_bad] == "INVALID_ARGUMENT").all()
    assert (kinds[~all_bad] == ANSWERED).all()
    answered = calls[~all_bad]
    assert (answered["refused"] == answered["poisoned"]).all()
    assert (answered["decided"] + answered["refused"] == answered["rows"]).all()
    assert f"{int(calls['decided'].sum()):,} decisions" in said
    assert crowd.returncode == 1  # Locust's own way to say that some failed
    failures = (tmp_path / "mix_failures.csv").read_text()
    assert "INVALID_ARGUMENT" in failures


def test_the_page_steers_users(tmp_path: Path) -> None:
    """It shows the flags that are not files, starts users, and shows their results."""
    port = free_port("127.0.0.1")
    page = f"http://127.0.0.1:{port}"
    with (
        TestServer() as server,
        locust(
            *("--host", server.url, "--web-host", "127.0.0.1", "--web-port", str(port)),
            *("--repository", str(CHECKOUT / "model_repository")),
            headless=False,
        ) as crowd,
    ):
        wait_for(lambda: answers(page), crowd)
        shown = asked(page)
        form = {"user_count": "4", "spawn_rate": "4", "host": server.url}
        asked(f"{page}/swarm", form | {"scenario": "by hand", "per_user": "20"})
        wait_for(lambda: total_of(page)["num_requests"] >= 30, crowd)
        total = total_of(page)
        crowd.terminate()
        ended(crowd)
    assert total["num_failures"] == 0
    assert '"distribution-shift"' in shown
    assert '"slow-store"' not in shown  # something is done to the server
    assert '"raw"' not in shown


def answers(url: str) -> bool:
    """Return whether the page is there; Locust may still be starting."""
    try:
        asked(url)
    except urllib.error.URLError:
        return False
    return True


def asked(url: str, form: dict[str, str] | None = None) -> str:
    """Ask the page."""
    data = urllib.parse.urlencode(form).encode() if form else None
    with urllib.request.urlopen(url, data=data, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def total_of(page: str) -> dict[str, Any]:
    """Read the page's line of totals."""
    (*_, total) = json.loads(asked(f"{page}/stats/requests"))["stats"]
    return dict(total)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--mix", "loans"], "locust: --mix: 'loans' is none of those served"),
        (["--scenario", "ramp", "--per-user", "0"], "locust: --per-user: 0 is not"),
        (["--raw", "x.npz"], "locust: --raw: needs a --scenario"),
        (["--state", "/nowhere"], "locust: no server runs in /nowhere"),
    ],
)
def test_invalid_options_end_the_program(words: list[str], says: str) -> None:
    """Exit status 2 and one line, before anybody asks."""
    host = [] if "--state" in words else ["--host", "127.0.0.1:1"]
    with locust(*words, *host) as child:
        said = ended(child)
    assert child.returncode == 2
    assert [line for line in said.splitlines() if "locust:" in line] == [
        next(line for line in said.splitlines() if line.startswith(says))
    ]
