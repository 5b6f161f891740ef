"""Raw results: what was written is read; what is not ours is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from loadtests.paced.bench import Target, fault_injection, marks_of
from loadtests.paced.raw import (
    BATCH,
    About,
    Mark,
    Raw,
    Server,
    no_batches,
    read_raw,
    write_raw,
)
from loadtests.paced.scenario import Phase, Scenario, ScenarioFault
from tollgate.errors import InputError
from tollgate.load.results import CALL

SCENARIO = Scenario(
    phases=(Phase(seconds=4, rate=100), Phase(seconds=2, rate=100, to=300)),
    trouble=ScenarioFault(kind="store-slow", at_s=1, seconds=2),
)


def raw() -> Raw:
    """Three calls; one batch was reported."""
    calls = np.zeros(3, CALL)
    calls["due_us"] = [0, 10, 20]
    calls["took_us"] = [5_000, 7_000, 1_000_000]
    about = About(
        name="made-up",
        scenario=SCENARIO,
        run=2,
        label="before",
        seed=7,
        driver="compiled",
        connections=4,
        command="python -m loadtests.run made-up",
        measured="then and there",
        store="nothing",
        kinds=("answered", "no answer in time"),
        examples={},
        marks=marks_of(SCENARIO),
        sender_cpu_s=0.5,
        server=Server("r-1", 3, 2, 1, 6, 3, 0.25, 200.0),
    )
    batches = np.zeros(1, BATCH)
    batches["took_us"], batches["origin"] = 900, -1
    return Raw(about, calls, {"features": np.array([4.5])}, batches)


def test_written_results_are_read_back(tmp_path: Path) -> None:
    """Header, columns and layers, bit for bit."""
    write_raw(tmp_path / "run.npz", raw())
    found = read_raw(tmp_path / "run.npz")
    assert found.about == raw().about
    assert np.array_equal(found.calls, raw().calls)
    assert found.layers_ms["features"].tolist() == [4.5]
    assert found.batches.tolist() == raw().batches.tolist()


def test_a_file_of_before_is_read_without_its_layers(tmp_path: Path) -> None:
    """Their boundaries differ: next to those of today they would mislead."""
    old = raw()
    about = msgspec.structs.replace(old.about, version=1)
    np.savez(
        tmp_path / "run.npz",
        about=np.frombuffer(msgspec.json.encode(about), np.uint8),
        calls=old.calls,
        layer_features_ms=np.array([4.5]),
    )
    found = read_raw(tmp_path / "run.npz")
    assert np.array_equal(found.calls, old.calls)
    assert found.layers_ms == {}
    assert len(found.batches) == len(no_batches()) == 0


def test_a_raw_result_needs_nothing_of_ours(tmp_path: Path) -> None:
    """NumPy and JSON read it."""
    write_raw(tmp_path / "run.npz", raw())
    with np.load(tmp_path / "run.npz") as arrays:
        about = msgspec.json.decode(arrays["about"].tobytes())
        assert arrays["calls"]["took_us"].tolist() == [5_000, 7_000, 1_000_000]
    assert about["scenario"]["phases"][0] == {"seconds": 4, "rate": 100, "to": None}


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    """Missing, of something else, or of another version."""
    path = tmp_path / "x.npz"
    with pytest.raises(InputError, match=r"x\.npz: is no raw result"):
        read_raw(path)
    path.write_text("hello")
    with pytest.raises(InputError, match=r"x\.npz: is no raw result"):
        read_raw(path)
    np.savez(path, about=np.frombuffer(b'{"version": 9}', np.uint8))
    with pytest.raises(InputError, match="version 9 is not 2"):
        read_raw(path)


def test_marks_name_what_begins() -> None:
    """Phases and troubles, in the order of their beginnings."""
    assert marks_of(SCENARIO) == (
        Mark(0, "100 requests/s"),
        Mark(1, "store-slow"),
        Mark(3, "store-slow over"),
        Mark(4, "100 to 300 requests/s"),
    )


def test_a_trouble_needs_a_server_of_ours() -> None:
    """Nobody stops a stranger's server, or slows his store."""
    for kind in ("store-slow", "server-stopped"):
        one = Scenario(
            phases=SCENARIO.phases, trouble=ScenarioFault(kind=kind, at_s=1, seconds=1)
        )
        with (
            pytest.raises(InputError, match=f"{kind} needs a server of our own"),
            fault_injection(one, Target()),
        ):
            pass
