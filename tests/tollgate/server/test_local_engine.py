"""The engine of the committed products decides rows without a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.checkout import checkout_environment
from tollgate import Engine
from tollgate.errors import InputError, SetupError
from tollgate.schema import STORE_LOST, Degraded

REPOSITORY = Path(__file__).parents[3] / "model_repository"
NOW_US = time.time_ns() // 1000


def purchases(count: int) -> dict[str, list[object]]:
    """Make purchases of one customer."""
    return {
        "transaction_id": [f"t{row}" for row in range(count)],
        "customer_id": ["alice"] * count,
        "terminal_id": [f"m{row}" for row in range(count)],
        "amount": [12.5] * count,
        "event_time": [NOW_US] * count,
    }


def test_a_bad_row_fails_alone() -> None:
    """It has its error; the others are decided, in the name of the release."""
    rows = purchases(70)
    rows["amount"][40] = -1.0
    with Engine.open(REPOSITORY, product="fraud") as engine:
        found = engine.decide(rows)
    good = np.arange(70) != 40
    assert set(found["release"].tolist()) == {"fraud-1"}
    assert set(found["decision"][good].tolist()) <= {"approve", "review", "decline"}
    assert np.isfinite(found["score"][good]).all()
    assert not (found["degraded"] & np.uint32(STORE_LOST)).any()
    assert found["decision"][40] == ""
    assert np.isnan(found["score"][40])
    assert found["error"][40].startswith("amount: -1.0")


def test_a_file_holds_the_windows_between_engines(tmp_path: Path) -> None:
    """The second half is decided as if one engine had decided both."""
    path = tmp_path / "windows.store"
    first, second = purchases(96), purchases(96)
    second["transaction_id"] = [f"later{row}" for row in range(96)]
    with Engine.open(REPOSITORY, product="fraud") as engine:
        whole = engine.decide(first), engine.decide(second)
    store = f"memory:{path}"
    with Engine.open(REPOSITORY, product="fraud", store=store) as engine:
        assert_same(engine.decide(first, dry_run=True), whole[0], rows=32)
        assert_same(engine.decide(first), whole[0])
        before = os.listdir(tmp_path)
        engine.save()
        assert sorted([*before, path.name]) == sorted(os.listdir(tmp_path))
        assert path.stat().st_mode & 0o777 == 0o600
    with Engine.open(REPOSITORY, product="fraud", store=store) as engine:
        assert_same(engine.decide(second), whole[1])
    with Engine.open(REPOSITORY, product="fraud") as engine:
        cold = engine.decide(second)
    assert cold["score"].tobytes() != whole[1]["score"].tobytes()


def assert_same(
    found: dict[str, npt.NDArray[Any]],
    wanted: dict[str, npt.NDArray[Any]],
    *,
    rows: int | None = None,
) -> None:
    """Compare columns, their first rows or all."""
    assert found.keys() == wanted.keys()
    for name, column in wanted.items():
        if column.dtype == np.object_:
            assert found[name][:rows].tolist() == column[:rows].tolist(), name
        else:
            assert found[name][:rows].tobytes() == column[:rows].tobytes(), name


def test_a_damaged_file_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    """Nothing is decided with half of the windows, and nothing is overwritten."""
    path = tmp_path / "windows.store"
    with Engine.open(REPOSITORY, product="fraud", store=f"memory:{path}") as engine:
        engine.decide(purchases(3))
    damaged = path.read_bytes()[:-1]
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"windows\.store: is damaged"):
        Engine.open(REPOSITORY, product="fraud", store=f"memory:{path}")
    assert path.read_bytes() == damaged
    path.unlink()  # and the failed opening left no lock
    Engine.open(REPOSITORY, product="fraud", store=f"memory:{path}").close()


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    """A folder in its place stands for a full disk: the error names the file."""
    path = tmp_path / "windows.store"
    engine = Engine.open(REPOSITORY, product="fraud", store=f"memory:{path}")
    path.mkdir()
    with pytest.raises(SetupError, match=r"windows\.store cannot be written"):
        engine.close()
    assert [one for one in os.listdir(tmp_path) if not one.endswith(".lock")] == [
        path.name
    ]


def test_one_engine_at_a_time_uses_a_file(tmp_path: Path) -> None:
    """The second would overwrite the windows of the first."""
    store = f"memory:{tmp_path}/windows.store"
    with (
        Engine.open(REPOSITORY, product="fraud", store=store),
        pytest.raises(SetupError, match=r"windows\.store cannot be opened: .* in use"),
    ):
        Engine.open(REPOSITORY, product="fraud", store=store)
    Engine.open(REPOSITORY, product="fraud", store=store).close()


@pytest.mark.parametrize("store", ["", "memry", "memory:", "embedded:", "http://a"])
def test_an_unknown_store_is_refused(store: str) -> None:
    """The error lists the choices, or the schemes of an address."""
    with pytest.raises(InputError, match=r"memory:FILE|redis"):
        Engine.open(REPOSITORY, product="fraud", store=store)


def test_the_embedded_redis_has_the_windows_of_the_state_folder(
    tmp_path: Path,
) -> None:
    """They outlive the engine, and have the bits of a store in memory."""
    store = f"embedded:{tmp_path}"
    rows, more = purchases(40), purchases(40)
    more["transaction_id"] = [f"later{row}" for row in range(40)]
    with Engine.open(REPOSITORY, product="fraud") as engine:
        wanted = engine.decide(rows), engine.decide(more)
    with Engine.open(REPOSITORY, product="fraud", store=store) as engine:
        assert_same(engine.decide(rows), wanted[0])
    with Engine.open(REPOSITORY, product="fraud", store=store) as engine:
        assert_same(engine.decide(more), wanted[1])


def test_credit_is_decided_with_some_of_its_fields() -> None:
    """A declared field may be left out; its rows are marked."""
    rows = {
        "transaction_id": ["a", "b"],
        "amount": [5_000.0, 80_000.0],
        "event_time": [NOW_US, NOW_US],
        "income": [3_000.0, float("nan")],
        "purpose": ["car", ""],
    }
    with Engine.open(REPOSITORY, product="credit") as engine:
        found = engine.decide(rows)
    assert (found["degraded"] & np.uint32(Degraded.FIELD_MISSING)).all()
    assert found["error"].tolist() == ["", ""]


def test_no_rows_give_empty_columns() -> None:
    """The outputs are there."""
    with Engine.open(REPOSITORY, product="fraud") as engine:
        found = engine.decide({name: [] for name in purchases(1)})
    assert sorted(found) == sorted(
        ("decision", "score", "reason_codes", "degraded", "error", "release")
    )
    assert all(len(column) == 0 for column in found.values())


@pytest.mark.parametrize(
    ("name", "column", "problem"),
    [
        ("terminal_id", None, "terminal_id: is missing"),
        ("terminal", ["a", "b"], "terminal: is unknown; did you mean terminal_id"),
        ("amount", [1.0], "amount: has 1 rows, but event_time has 2"),
        ("amount", ["much", 1.0], "amount: could not convert .* 'much'"),
        ("event_time", [1.5, 2.0], "event_time: .*1.5.* is not an integer"),
    ],
)
def test_a_wrong_column_is_named(
    name: str, column: list[object] | None, problem: str
) -> None:
    """It is wrong in the call, not in a row."""
    rows = purchases(2)
    rows.pop(name, None)
    if column is not None:
        rows[name] = column
    with (
        Engine.open(REPOSITORY, product="fraud") as engine,
        pytest.raises(InputError, match=problem),
    ):
        engine.decide(rows)


def test_importing_the_package_loads_nothing() -> None:
    """The engine and NumPy are imported when the name is used."""
    code = (
        "import sys, tollgate; few = set(sys.modules); tollgate.Engine; "
        "print('numpy' in few, 'tollgate.server' in few, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", "True"]


def test_the_examples_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    """They run one after the other, like the cells of a notebook."""
    page = (REPOSITORY.parent / "docs/local.md").read_text()
    cells = re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    assert len(cells) == page.count("```python")
    (tmp_path / "model_repository").symlink_to(REPOSITORY)
    code = "print('---')\n".join(source for source, _ in cells)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env=checkout_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "---\n".join(shown for _, shown in cells)
