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
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from loadtests.paced.calls import ANSWERED
from loadtests.paced.raw import Raw, read_raw
from loadtests.run import main as run
from loadtests.supervised import Supervised, supervised
from tollgate.server.environment import free_port
from tollgate.testing import TestServer

CHECKOUT = Path(__file__).parents[3]
NO_COMPILER = pytest.mark.skipif(
    not shutil.which("cc"), reason="no C compiler: apt-get install gcc libnghttp2-14"
)
RATE, SECONDS = 100, 10
TRIES = 3  # a machine that does much else can be unfair to one of two programs
# How far apart the two may be: Locust's whole milliseconds, and the processor time
# that it takes itself. docs/loadtests.md has the figures of a quiet machine.
RATE_SHARE, P50_MS, P50_SHARE, P99_TIMES = 0.1, 1.5, 0.3, 2.5


class Figures(msgspec.Struct, frozen=True):
    """What one program says of a ramp, the warm-up left out."""

    requests: float
    p50_ms: float
    p99_ms: float

    def near(self, other: Figures) -> bool:
        """Tell whether they are within the stated error of each other."""
        far_ms = P50_MS + P50_SHARE * min(self.p50_ms, other.p50_ms)
        low_ms, high_ms = sorted((self.p99_ms, other.p99_ms))
        return (
            abs(self.requests / other.requests - 1) <= RATE_SHARE
            and abs(self.p50_ms - other.p50_ms) <= far_ms
            and high_ms <= P99_TIMES * low_ms + P50_MS
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """One server for the tests of this module."""
    folder = tmp_path_factory.mktemp("locust")
    with supervised(CHECKOUT / "model_repository", state=folder / "state") as server:
        yield server


def locust(*words: str, headless: bool = True) -> subprocess.Popen[str]:
    """Start Locust, without its page or with it."""
    command = [sys.executable, "-m", "locust", "-f", "loadtests/locustfile.py"]
    plain = ["--headless", "--only-summary"] if headless else []
    return subprocess.Popen(
        [*command, *plain, *words],
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(child: subprocess.Popen[str]) -> str:
    """Wait for its end; what it said."""
    try:
        return child.communicate(timeout=120)[1]
    finally:
        child.kill()


def told_by_locust(prefix: Path) -> dict[str, str]:
    """Read the summary line of its CSV."""
    with prefix.with_name(prefix.name + "_stats.csv").open() as file:
        (row,) = (one for one in csv.DictReader(file) if one["Name"] == "Aggregated")
    return row


def figures_of(raw: Raw) -> Figures:
    """Read raw results as the report does."""
    calls = raw.calls[raw.calls["due_us"] >= raw.about.scenario.warm_up_s * 1e6]
    p50_ms, p99_ms = np.percentile(calls["took_us"] / 1e3, [50, 99])
    return Figures(len(calls), float(p50_ms), float(p99_ms))


def ramp_of_both(url: str, state: Path, folder: Path) -> tuple[Figures, Figures]:
    """Run a ramp with Locust and as an open loop at once; the same server, the same."""
    size = ["--rate", str(RATE), "--seconds", str(SECONDS)]
    crowd = locust(
        *("--scenario", "ramp", *size, "--state", str(state)),
        *("--csv", str(folder / "ramp"), "--raw", str(folder / "crowd.npz")),
    )
    words = ["--customers", "60", "--terminals", "80", "--grpc-url", url]
    assert run(["ramp", *size, *words, "--out", str(folder)]) == 0
    said = ended(crowd)
    assert crowd.returncode == 0, said
    raw = read_raw(folder / "crowd.npz")
    assert raw.about.kinds == (ANSWERED,)
    assert (raw.calls["decided"] == 1).all()
    told = told_by_locust(folder / "ramp")
    ours = figures_of(raw)
    # What Locust writes is what the raw result has, in its whole milliseconds: up to
    # 100 each, then tens, then hundreds. A request at the edge may count or not.
    assert abs(float(told["50%"]) - ours.p50_ms) <= 0.05 * ours.p50_ms + 1
    assert abs(int(told["Request Count"]) / ours.requests - 1) <= RATE_SHARE
    crowd_says = Figures(ours.requests, float(told["50%"]), float(told["99%"]))
    return crowd_says, figures_of(read_raw(folder / f"ramp-{RATE}x1-1.npz"))


@pytest.mark.slow
@NO_COMPILER
def test_a_ramp_agrees_with_the_open_loop(served: Supervised, tmp_path: Path) -> None:
    """Rate, p50 and p99 within the stated error, while the server has time for all."""
    seen = []
    for _ in range(TRIES):
        seen.append(ramp_of_both(served.grpc_url, served.state, tmp_path))
        if seen[-1][0].near(seen[-1][1]):
            return
    raise AssertionError(f"locust, open loop: {seen}")


@pytest.mark.slow
def test_a_stall_is_seen_by_each_user_once(tmp_path: Path) -> None:
    """
    The closed loop: who waits does not ask, so what was due meanwhile is left out.

    Eight users, 80 requests a second. An open loop has as many late answers as were
    due in the stall; these have eight at most, however long it takes.
    """
    with TestServer() as server:
        words = ["--scenario", "steady", "--rate", "80", "--per-user", "10"]
        crowd = locust(
            *(*words, "--seconds", "6", "--host", server.url),
            *("--repository", str(CHECKOUT / "model_repository")),
            *("--raw", str(tmp_path / "crowd.npz")),
        )
        stalls = _when_asked(server, 120)
        server.stall()
        time.sleep(0.6)
        server.heal()
        said = ended(crowd)
    assert stalls, said
    calls = read_raw(tmp_path / "crowd.npz").calls
    waited = calls[calls["took_us"] >= 550_000]
    assert 1 <= len(waited) <= 8 < 0.6 * 80


def _when_asked(server: TestServer, rows: int) -> bool:
    """Wait until so many rows came."""
    for _ in range(1200):
        if len(server.asked) >= rows:
            return True
        time.sleep(0.025)
    return False


def test_a_mix_of_rows_is_told_by_kind(tmp_path: Path) -> None:
    """Poisoned requests fail under the name of the open loop; the rest is decided."""
    with TestServer() as server:
        crowd = locust(
            *("--scenario", "poison-mix", "--rate", "120", "--seconds", "4"),
            *("--mix", "fraud=3,fraud:4=1", "--host", server.url),
            *("--repository", str(CHECKOUT / "model_repository")),
            *("--raw", str(tmp_path / "crowd.npz"), "--csv", str(tmp_path / "mix")),
        )
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
    """It shows the flags that are not files, starts users, and tells what they see."""
    port = free_port("127.0.0.1")
    page = f"http://127.0.0.1:{port}"
    with TestServer() as server:
        crowd = locust(
            *("--host", server.url, "--web-host", "127.0.0.1", "--web-port", str(port)),
            *("--repository", str(CHECKOUT / "model_repository")),
            headless=False,
        )
        try:
            shown = asked(page)
            form = {"user_count": "4", "spawn_rate": "4", "host": server.url}
            asked(f"{page}/swarm", form | {"scenario": "by hand", "per_user": "20"})
            for _ in range(200):
                (*_, total) = json.loads(asked(f"{page}/stats/requests"))["stats"]
                if total["num_requests"] >= 30:
                    break
                time.sleep(0.1)
        finally:
            crowd.terminate()
            said = ended(crowd)
    assert total["num_requests"] >= 30, said
    assert total["num_failures"] == 0
    assert '"distribution-shift"' in shown
    assert '"slow-store"' not in shown  # something is done to the server
    assert '"raw"' not in shown


def asked(url: str, form: dict[str, str] | None = None) -> str:
    """Ask the page, which may still be starting."""
    data = urllib.parse.urlencode(form).encode() if form else None
    for _ in range(200):
        try:
            with urllib.request.urlopen(url, data=data, timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError(f"nothing answers at {url}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--mix", "loans"], "locust: --mix: 'loans' is none of those served"),
        (["--scenario", "ramp", "--per-user", "0"], "locust: --per-user: 0 is not"),
        (["--raw", "x.npz"], "locust: --raw: needs a --scenario"),
        (["--state", "/nowhere"], "locust: no server runs in /nowhere"),
    ],
)
def test_what_makes_no_sense_ends_at_once(words: list[str], says: str) -> None:
    """Exit status 2 and one line, before anybody asks."""
    host = [] if "--state" in words else ["--host", "127.0.0.1:1"]
    child = locust(*words, *host)
    said = ended(child)
    assert child.returncode == 2
    assert [line for line in said.splitlines() if "locust:" in line] == [
        next(line for line in said.splitlines() if line.startswith(says))
    ]
