"""The process that looks decisions up: its answers, its end, its replacement."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tollgate.console import decision_lookup
from tollgate.console.decision_lookup import BusyError, DecisionLookup
from tollgate.errors import InputError

MODELS = Path(__file__).parents[3] / "model_repository"


@pytest.fixture
def lookup(tmp_path: Path) -> Iterator[DecisionLookup]:
    """Of a state folder without a journal, and no stream."""
    found = DecisionLookup(tmp_path, repository=MODELS, stream_url=lambda: "")
    yield found
    found.close()


def test_a_process_that_died_is_replaced(lookup: DecisionLookup) -> None:
    """The same process answers until then; the problem is that of the journal."""
    lookup.start()
    first = lookup._child
    assert first is not None
    for _ in range(2):
        with pytest.raises(InputError, match=r"t-1: .*holds no journal"):
            lookup.explain("fraud", "t-1")
    assert lookup._child is first
    first.kill()
    first.wait()
    with pytest.raises(InputError, match="holds no journal"):
        lookup.explain("fraud", "t-1")
    assert lookup._child is not first


def test_a_look_up_that_takes_too_long_is_ended(
    lookup: DecisionLookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that has no limit; the next one gets a new process."""
    monkeypatch.setattr(decision_lookup, "LIMIT_S", 0.0)
    with pytest.raises(InputError, match="`tollgate explain` searches without"):
        lookup.explain("fraud", "t-1")
    assert lookup._child is not None
    assert lookup._child.poll() is not None
    monkeypatch.setattr(decision_lookup, "LIMIT_S", 600.0)
    with pytest.raises(InputError, match="holds no journal"):
        lookup.explain("fraud", "t-1")


def test_one_look_up_runs_at_a_time(lookup: DecisionLookup) -> None:
    """Another one is refused and can be repeated."""
    with lookup._running, pytest.raises(BusyError, match="another look-up"):
        lookup.explain("fraud", "t-1")


@pytest.mark.parametrize("decision", ["", "x" * 257])
def test_ids_have_a_length(lookup: DecisionLookup, decision: str) -> None:
    """1 to 256 characters; no process starts for others."""
    with pytest.raises(InputError, match="1 to 256 characters"):
        lookup.explain("fraud", decision)
    assert lookup._child is None


def test_the_process_ends_with_its_pipe(
    lookup: DecisionLookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it does not outlive the server; where memory is short, it ends first."""
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # the working folder is not on the path
    lookup.start()
    child = lookup._child
    assert child is not None
    assert child.stdin is not None
    score = Path(f"/proc/{child.pid}/oom_score_adj")
    while score.read_text() != "1000\n":
        assert child.poll() is None
        time.sleep(0.01)
    child.stdin.close()
    assert child.wait(600) == 0
