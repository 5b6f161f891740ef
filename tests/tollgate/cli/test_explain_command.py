"""`explain` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import redis
from typer.testing import CliRunner

from tests.support.audit.decided_records import decided
from tests.support.audit.random_records import REPOSITORY
from tollgate.cli.app import app
from tollgate.journal.decision_record import encode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key


def run(*arguments: str) -> tuple[int, str]:
    """Run a command; exit status and output."""
    done = CliRunner().invoke(app, [*arguments, "--repository", str(REPOSITORY)])
    return done.exit_code, done.output + repr(done.exception)


@pytest.fixture
def folder(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Path:
    """A journal of forty decisions; another forty wait in the stream."""
    place = tmp_path / "journal"
    for first in (0, 40):
        raw = encode_chunk(decided(40, first=first))
        redis_client.xadd(stream_key("fraud"), {CHUNK_FIELD: raw})
        if not first:
            options = (
                "--journal-url",
                store_url,
                "--folder",
                str(place),
                "--until-idle",
            )
            status, text = run("journal", "run", *options)
            assert status == 0, text
    return place


@pytest.mark.parametrize("first", [0, 40])
def test_a_decision_is_explained_where_it_is(
    folder: Path, store_url: str, first: int
) -> None:
    """Sealed or pending: the decision, the contributions, and the reasons."""
    records = decided(40, first=first)
    row = int(np.flatnonzero(records.decision == 2)[0])
    one = records.transaction_id[row].decode()
    where = ("--folder", str(folder), "--journal-url", store_url)
    status, text = run("explain", one, *where)
    assert status == 0, text
    lines = text.splitlines()
    assert lines[0].startswith(
        f"decline, score {records.score[row]:.4f}, by fraud-1 at"
    )
    place = "the stream, not sealed yet" if first else "link 3, row"
    assert lines[1].startswith(f"record {records.writer}:{first + row}, {place}")
    assert "thresholds of segment" in text
    assert "moved the score by" in text
    assert "terminal_risk_7d" in text
    assert "reasons for the person:" in text
    assert "  1. The purchase looks very much like known fraud." in text
    status, text = run("explain", one, *where, "--json")
    assert status == 0, text
    explained = json.loads(text.rpartition("None")[0])
    assert explained["decision"] == "decline"
    assert explained["reasons"][0]["contribution"] is None
    amounts = [one["amount"] for one in explained["contributions"]]
    assert explained["margin"] == pytest.approx(explained["expected"] + sum(amounts))


def test_an_unknown_decision_is_reported(folder: Path, store_url: str) -> None:
    """An unknown id; a stream that cannot be read."""
    where = ("--folder", str(folder))
    status, text = run("explain", "never", *where, "--journal-url", store_url)
    assert status != 0
    assert "never: cannot be found in this journal" in text
    status, text = run("explain", "never", *where, "--journal-url", "unix:///nowhere")
    assert status != 0
    assert "the journal's stream cannot be read" in text
