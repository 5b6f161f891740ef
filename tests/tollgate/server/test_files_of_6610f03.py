"""Files that the code of commit 6610f03 wrote serve, verify and replay unchanged."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import redis
from typer.testing import CliRunner

from tests.support.checkout import CHECKOUT
from tollgate.cli.app import app
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.repair.spool_segments import segments
from tollgate.server.serving.embedded import serve
from tollgate_client import Client

FILES = CHECKOUT / "tests" / "fixtures" / "at_6610f03"
REQUESTS: dict[str, list[dict[str, Any]]] = json.loads(
    (FILES / "requests.json").read_text()
)
PATIENCE_S = 600.0
Answers = list[dict[str, Any]]


def stored_answers(name: str) -> Answers:
    """Read the answers that 6610f03 gave."""
    lines = (FILES / "answers" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def run(*words: str) -> str:
    """Run a command that must succeed; its output in one line."""
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return " ".join(done.output.split())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the model repository, whose active release is fraud-2."""
    copy = tmp_path / "model_repository"
    shutil.copytree(FILES / "model_repository", copy)
    return copy


def change_release(repository: Path, *words: str) -> None:
    """Run `tollgate release` on the copy."""
    where = ("--repository", str(repository), "--wait", "0")
    run("release", *words, "--reason", "a test", "--actor", "ada", *where)


def recorded_tensors(store_url: str, names: list[str]) -> dict[str, tuple[str, str]]:
    """Wait for the journal's records of these rows: bits of features, probabilities."""
    found: dict[str, tuple[str, str]] = {}
    until_s = time.monotonic() + PATIENCE_S
    while not set(names) <= found.keys():
        assert time.monotonic() < until_s, f"{len(found)} records of {len(names)}"
        time.sleep(0.05)
        with redis.Redis.from_url(store_url) as store:
            entries = [one for _, one in store.xrange(stream_key("fraud"))]
        for chunk in (
            decode_chunk(e[CHUNK_FIELD]) for e in entries if CHUNK_FIELD in e
        ):
            for row, name in enumerate(chunk.transaction_id):
                found[name.decode()] = (
                    chunk.features[row].astype("<f4").tobytes().hex(),
                    chunk.probabilities[row].astype("<f4").tobytes().hex(),
                )
    return found


def served_answers(repository: Path, state: Path, *, requests: str) -> Answers:
    """Serve the repository on a state folder and decide requests, one at a time."""
    rows: Answers = []
    with serve(repository, state=state) as server:
        until_s = time.monotonic() + PATIENCE_S
        while segments(state / "spool" / "fraud"):
            assert time.monotonic() < until_s, "the spool does not empty"
            time.sleep(0.05)
        with Client(server.grpc_url, timeout_s=30) as client:
            for request in REQUESTS[requests]:
                found = client.decide(request)
                rows += [
                    {
                        "transaction_id": request["transaction_id"][row],
                        "decision": str(found.decision[row]),
                        "score": found.score[row].tobytes().hex(),
                        "reason_codes": list(found.reason_codes[row]),
                        "degraded": int(found.degraded[row]),
                        "error": str(found.error[row]),
                        "release": str(found.release[row]),
                    }
                    for row in range(len(found))
                ]
        names = [one["transaction_id"] for one in rows]
        recorded = recorded_tensors(server.store_url, names)
    for one in rows:
        one["features"], one["probabilities"] = recorded[one["transaction_id"]]
    return rows


def test_the_stored_answers_cover_decisions_and_degraded_rows() -> None:
    """The fixture holds two releases, several decisions and features from the store."""
    answers = stored_answers("first") + stored_answers("later-fraud-1")
    assert {one["release"] for one in answers} == {"fraud-1", "fraud-2"}
    assert len({one["decision"] for one in answers}) > 1
    assert len({one["features"] for one in answers}) > 100
    assert len({one["degraded"] for one in answers}) > 2
    assert all(one["error"] == "" for one in answers)


@pytest.mark.slow
def test_a_release_of_6610f03_gives_its_answers_on_an_empty_store(
    repository: Path, tmp_path: Path
) -> None:
    """Decision, score, reasons, features and probabilities have the same bits."""
    found = served_answers(repository, tmp_path / "state", requests="first")
    assert found == stored_answers("first")


@pytest.mark.slow
def test_a_state_folder_and_a_rollback_give_the_answers_of_6610f03(
    repository: Path, tmp_path: Path
) -> None:
    """The store's values and the spool are read; both releases answer as they did."""
    for number, words in enumerate((("rollback",), ("activate", "fraud-2"))):
        change_release(repository, *words)
        state = tmp_path / f"state-{number}"
        shutil.copytree(FILES / "state", state)
        found = served_answers(repository, state, requests="later")
        release = ("fraud-1", "fraud-2")[number]
        assert found == stored_answers(f"later-{release}")


def test_the_journal_of_6610f03_verifies_and_replays(
    repository: Path, tmp_path: Path
) -> None:
    """Chain and anchor hold; each sealed decision, made again, has the same bits."""
    for path in FILES.glob("journal*"):
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, tmp_path / path.name)
    folder = tmp_path / "journal"
    rows = len(stored_answers("first"))
    text = run("journal", "verify", str(folder))
    assert f"{rows} decisions: as sealed" in text
    assert "no anchor" not in text
    text = run("journal", "replay", str(folder), "--repository", str(repository))
    assert f"fraud-2: {rows} of {rows} the same (bit for bit" in text


def test_the_records_of_6610f03_hold_its_answers() -> None:
    """A sealed row has the score that the server answered."""
    tables = [pl.read_parquet(path) for path in FILES.glob("journal/*.segment.parquet")]
    sealed = pl.concat(tables).sort("sequence")
    answers = stored_answers("first")
    assert sealed["decision"].to_list() == [one["decision"] for one in answers]
