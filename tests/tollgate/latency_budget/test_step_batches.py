"""Reports of steps are read as a whole, and by one reader at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tollgate.errors import ServerError
from tollgate.latency_budget.step_batches import batches_of, record_batches
from tollgate.tracing import BATCHES_FILE, TRACE_FOLDER
from tollgate.tracing.batches import BatchSpan, BatchSpanWriter

STEPS = ("shop_features", "shop_model")


class Asked:
    """A request as a step sees it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def request_id(self) -> str:
        """Return the id that its caller gave it."""
        return self._name


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder, as a server leaves it."""
    (tmp_path / TRACE_FOLDER).mkdir()
    return tmp_path


def line(step: str, number: int, *requests: str, process: int = 1) -> bytes:
    """A batch from 10 to 20 µs."""
    span = BatchSpan(step, process, number, 10, 20, len(requests), requests)
    return msgspec.json.encode(span) + b"\n"


def test_lines_are_read_wherever_they_are_cut() -> None:
    """Requests point at their batches; what is no number of ours has none."""
    lines = b"".join(
        [
            line("shop_features", 0, "000000004", "", "x", "1" * 30, "٣", "5"),
            line("other_model", 0, "6"),
            line("shop_model", 0, "4"),
        ]
    )
    for cut in range(len(lines)):
        found = batches_of([lines[:cut], lines[cut:]], STEPS)
        assert found.step.tolist() == [0, 1]
        assert found.rows.tolist() == [6, 1]
        assert found.request.tolist() == [4, 5, 4]
        assert found.batch.tolist() == [0, 0, 1]
        assert found.lost == 0


def test_dropped_reports_are_counted() -> None:
    """By process and step: instances count for themselves."""
    lines = [
        line("shop_model", 0),
        line("shop_model", 3),
        line("shop_model", 1, process=2),
        line("shop_features", 0),
    ]
    assert batches_of(lines, STEPS).lost == 3


def test_nothing_told_is_no_batch() -> None:
    """And no mistake: a server that refused every request reports nothing."""
    found = batches_of([], STEPS)
    assert (len(found.step), len(found.request), found.lost) == (0, 0, 0)


def test_a_look_ends_without_a_rest(state: Path) -> None:
    """Reports from before its end are there; the pipe is not."""
    pipe = state / TRACE_FOLDER / BATCHES_FILE
    writer = BatchSpanWriter(str(pipe), step="shop_model")
    with record_batches(state, STEPS) as found:
        assert os.stat(pipe).st_mode & 0o777 == 0o600
        for number in range(3):
            assert writer.is_enabled()
            writer.write([Asked(str(number))], rows=1, began_us=0)
    assert found[0].request.tolist() == [0, 1, 2]
    assert list(pipe.parent.iterdir()) == []
    writer.write([], rows=1, began_us=0)
    assert not writer.is_enabled()


def test_two_do_not_look_at_once(state: Path) -> None:
    """Each would have half; the second one is refused, and the first goes on."""
    writer = BatchSpanWriter(
        str(state / TRACE_FOLDER / BATCHES_FILE), step="shop_model"
    )
    with record_batches(state, STEPS) as found:
        with (
            pytest.raises(ServerError, match="another process records"),
            record_batches(state, STEPS),
        ):
            pass
        assert writer.is_enabled()
        writer.write([], rows=1, began_us=0)
    writer.close()
    assert len(found[0].step) == 1


def test_a_killed_look_is_in_nobodys_way(state: Path) -> None:
    """Its pipe stays, and the next one replaces it."""
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from tollgate.latency_budget.step_batches import record_batches\n"
        "with record_batches(Path(sys.argv[1]), ()): os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(state)], check=False)
    assert done.returncode == -9
    assert (state / TRACE_FOLDER / BATCHES_FILE).is_fifo()
    with record_batches(state, STEPS) as found:
        pass
    assert len(found) == 1


def test_a_state_folder_of_no_server_is_told(tmp_path: Path) -> None:
    """In one line that names it."""
    with (
        pytest.raises(ServerError, match=r"traces/batches: No such file"),
        record_batches(tmp_path, STEPS),
    ):
        pass
