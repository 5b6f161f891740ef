"""`score` with a slow store reports the sources of its decisions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.support.store.relay import Relay
from tollgate.cli.decisions import decision_commands
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import serve
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases

REPOSITORY = Path(__file__).parents[3] / "model_repository"
NOW_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000
ROWS = 96

Score = Callable[..., tuple[subprocess.CompletedProcess[str], pl.DataFrame]]


@pytest.fixture(scope="module")
def relay(
    spec: FeatureSpec, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Relay]:
    """A network before a Redis that knows three purchases of each customer."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        fill(server, spec)
        path = Path(server.url.removeprefix("unix://"))
        with closing(Relay(path)) as one:
            yield one


def fill(server: EmbeddedRedis, spec: FeatureSpec) -> None:
    """Let each customer have bought three times."""
    store = RedisStore(server.url, deadline_s=30.0)
    earlier = range(3 * ROWS)
    OnlineFeatures(spec, store).load(
        Purchases(
            transaction_id=[b"e%d" % row for row in earlier],
            entity_id=[
                [b"c%d" % (row % ROWS) for row in earlier],
                [b"m%d" % (row % ROWS) for row in earlier],
            ],
            event_time_us=NOW_US - HOUR_US * (1 + np.arange(3 * ROWS) // ROWS),
            cents=np.full(3 * ROWS, 4_900),
        )
    )


def run_score(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `tollgate score` in a folder, for the committed product."""
    return subprocess.run(
        [
            *(sys.executable, "-c", "from tollgate.cli import main; main()"),
            *("score", *words, "--repository", str(REPOSITORY)),
        ],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def score_file(
    relay: Relay, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Score]:
    """Score one purchase of each customer on a real server behind that network."""
    folder = tmp_path_factory.mktemp("score")
    pl.DataFrame(
        {
            "transaction_id": [f"b{row}" for row in range(ROWS)],
            "customer_id": [f"c{row}" for row in range(ROWS)],
            "terminal_id": [f"m{row}" for row in range(ROWS)],
            "amount": [5.0 + 3 * row for row in range(ROWS)],
            "event_time": [NOW_US] * ROWS,
        }
    ).write_parquet(folder / "in.parquet")
    with serve(
        REPOSITORY, state=folder / "state", store_url=relay.url, journal_url=""
    ) as server:

        def run(
            *words: str,
        ) -> tuple[subprocess.CompletedProcess[str], pl.DataFrame]:
            out = folder / "out.parquet"
            out.unlink(missing_ok=True)
            done = run_score(
                folder,
                *("in.parquet", "--out", str(out), "--url", server.grpc_url),
                *("--dry-run", *words),
            )
            return done, pl.read_parquet(out)

        yield run


@pytest.mark.slow
def test_a_file_is_decided_on_real_values_though_the_store_is_slow(
    relay: Relay, score_file: Score
) -> None:
    """Each answer of the store takes 30 ms; a payment would have waited for 5."""
    relay.delay_s = 0.03
    done, slow = score_file("--store-deadline-ms", "1")
    assert done.returncode == 0
    lost = Degraded.STORE_UNAVAILABLE | Degraded.LOOKUPS_UNREAD
    assert slow["degraded"].to_list() == [lost] * ROWS
    assert f"{ROWS} of {ROWS} rows are degraded:" in done.stderr
    words = "The store gave no answer in time: some features are their declared"
    assert f"  {ROWS} STORE_UNAVAILABLE: {words} defaults." in done.stderr
    done, _ = score_file("--store-deadline-ms", "1", "--fail-on-error")
    assert done.returncode == 1
    assert f"--fail-on-error: {ROWS} of {ROWS} rows failed" in done.stderr

    done, patient = score_file("--fail-on-error", "--store-deadline-ms", "1000")
    assert (done.returncode, done.stderr) == (0, "")
    assert patient["degraded"].to_list() == [0] * ROWS
    relay.delay_s = 0.0
    _, quick = score_file("--store-deadline-ms", "1000")
    assert quick["degraded"].to_list() == [0] * ROWS
    assert patient["score"].to_list() == quick["score"].to_list()
    assert patient["score"].to_list() != slow["score"].to_list()


def answers(*rows: tuple[str, int]) -> dict[str, list[object]]:
    """Make the answers to rows: error and degraded bits."""
    return {
        "error": [error for error, _ in rows],
        "degraded": [bits for _, bits in rows],
        "decision": ["approve" for _ in rows],
    }


def failed_rows(given: dict[str, list[object]]) -> int:
    """Say what became of the rows, and count those that failed."""
    summary = decision_commands._summary(given)
    decision_commands._say(summary)
    assert summary["rows"] == len(given["error"])
    failed: int = summary["failed"]
    return failed


def test_degraded_rows_are_counted_in_words_and_errors_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A new customer and a missing field are of the row; no failure."""
    cold, field = int(Degraded.COLD_START), int(Degraded.FIELD_MISSING)
    known = int(Degraded.LAST_KNOWN_VECTOR)
    rows = [("", 0), ("", cold), ("", cold | field), ("", cold | known), ("x: y: z", 0)]
    assert failed_rows(answers(*rows)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "1 of 5 rows could not be decided: see `error`",
        "3 of 5 rows are degraded:",
    ]
    assert [line.split(":")[0] for line in lines[2:]] == [
        "  1 LAST_KNOWN_VECTOR",
        "  3 COLD_START",
        "  1 FIELD_MISSING",
    ]
    assert failed_rows(answers(("", 0), ("", cold | field))) == 0
    capsys.readouterr()
    assert failed_rows(answers(("", 0))) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("bit", "failed"),
    [
        (Degraded.STORE_UNAVAILABLE, 1),
        (Degraded.LAST_KNOWN_VECTOR, 1),
        (Degraded.COLD_START, 0),
        (Degraded.EVENT_TOO_LATE, 0),
        (Degraded.WINDOW_OVERFLOW, 0),
        (Degraded.STATE_CORRUPT, 1),
        (Degraded.MODEL_OUTPUT, 1),
        (Degraded.ESSENTIAL_MISSING, 0),
        (Degraded.FEED_STALE, 0),
        (Degraded.FIELD_MISSING, 0),
        (Degraded.LOOKUPS_UNREAD, 1),
        (Degraded.TABLE_MISSING, 0),
        (Degraded.HOOK_FAILED, 1),
        (Degraded.HYSTERESIS_UNREAD, 1),
    ],
)
def test_which_bits_fail(
    bit: Degraded, failed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/clients.md lists them."""
    assert failed_rows(answers(("", int(bit)))) == failed
    assert bit.name is not None
    assert bit.name in capsys.readouterr().err


def score_locally(
    folder: Path, *words: str, out: str = "local.jsonl"
) -> tuple[subprocess.CompletedProcess[str], bytes]:
    """Run `score in.jsonl` for the committed product, with these options."""
    done = run_score(folder, "in.jsonl", "--out", out, *words)
    path = folder / out
    return done, path.read_bytes() if path.exists() else b""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """
    A folder with a file of purchases, some of them bad.

    Only ids of the first request repeat: a server may apply requests in any order.
    """
    bad = {7: -1.0, 40: "much", 41: None, 66: 0.001}
    ids = {9: "", 12: None, 13: "x" * 200}
    pl.DataFrame(
        {
            "transaction_id": [ids.get(row, f"b{row}") for row in range(ROWS)],
            "customer_id": [f"c{row % 5 if row < 30 else row}" for row in range(ROWS)],
            "terminal_id": [f"m{row % 3 if row < 30 else row}" for row in range(ROWS)],
            "amount": [str(bad.get(row, 5.0 + row)) for row in range(ROWS)],
            "event_time": [str(NOW_US + 60_000_000 * row) for row in range(ROWS)],
        }
    ).write_ndjson(tmp_path / "in.jsonl")
    return tmp_path


@pytest.mark.slow
def test_score_local_writes_what_a_server_answers(rows: Path) -> None:
    """The same file and the same words, bad rows included, with any store."""
    with serve(REPOSITORY, state=rows / "state", journal_url="") as server:
        done, served = score_locally(rows, "--url", server.grpc_url, out="out.jsonl")
    assert done.returncode == 0, done.stderr
    assert served.count(b'"error":"amount: ') == 4
    for store in ("memory", "memory:windows.store", "embedded:own"):
        local, found = score_locally(rows, "--local", "--store", store)
        assert found == served, store
        assert local.stderr == done.stderr, store
    _, again = score_locally(rows, "--local", "--store", "memory:windows.store")
    assert again == served  # a purchase counts once


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--store", "memory"), "--store: needs --local"),
        (("--local", "--url", "h:1"), "--url: names a server"),
        (("--local", "--store", "memry"), "'memry' is none of memory, memory:FILE"),
    ],
)
def test_options_of_two_places_are_refused(
    rows: Path, words: tuple[str, ...], problem: str
) -> None:
    """One line, and no file."""
    done, found = score_locally(rows, *words)
    assert done.returncode == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
    assert found == b""
