"""Reading the Python steps out of /proc, over a /proc made by hand."""

from __future__ import annotations

import os
from pathlib import Path

from tollgate.supervisor.stubs import Step, find_stubs, is_meant

SERVER = 7
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process(
    proc: Path,
    pid: int,
    *,
    parent: int = SERVER,
    state: str = "S",
    argv: tuple[str, ...] = (),
    started_s: float = 40.0,
    pages: int = 3,
) -> None:
    """Write what the kernel would show of a process."""
    fields = ["0"] * 30
    fields[0], fields[1] = state, str(parent)
    fields[19], fields[21] = str(round(started_s * TICKS_PER_S)), str(pages)
    folder = proc / str(pid)
    folder.mkdir()
    # A program's name may hold brackets and spaces.
    (folder / "stat").write_text(f"{pid} (a) b) {' '.join(fields)}\n")
    (folder / "cmdline").write_bytes(b"".join(x.encode() + b"\0" for x in argv))


def stub_argv(model: str, version: int, instance: str) -> tuple[str, ...]:
    """Name the words that Triton starts a stub with."""
    return (
        "/b/python/triton_python_backend_stub",
        f"/repository/{model}/{version}/model.py",
        *("region", "1048576", "1048576", str(SERVER), "/b/python", "336"),
        *(instance, "DEFAULT"),
    )


def test_stubs_of_this_server_are_found_with_what_they_run(tmp_path: Path) -> None:
    """Model, version, instance, age and memory; others' processes are left out."""
    (tmp_path / "uptime").write_text("100.00 150.00\n")
    process(tmp_path, 10, argv=stub_argv("fraud_model", 3, "fraud_model_0_0"))
    process(tmp_path, 11, parent=1, argv=stub_argv("other", 1, "other_0_0"))
    process(tmp_path, 12, argv=("/bin/sh", "-c", "x", "y", "z"))
    (found,) = find_stubs(SERVER, proc=tmp_path)
    assert found.pid == 10
    assert found.step == Step("fraud_model", 3, "fraud_model_0_0")
    assert abs(found.age_s - 60) < 0.02
    assert found.resident_bytes == 3 * PAGE_BYTES
    assert not found.stopped


def test_a_zombie_is_dead_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    """What a signal stopped is marked; what a debugger holds is not."""
    (tmp_path / "uptime").write_text("100.00 150.00\n")
    for pid, state in enumerate("SRTtZX", start=10):
        argv = stub_argv("m", 1, f"m_0_{pid}")
        process(tmp_path, pid, state=state, argv=argv)
    found = {stub.pid: stub.stopped for stub in find_stubs(SERVER, proc=tmp_path)}
    assert found == {10: False, 11: False, 12: True, 13: False}


def test_an_instance_beyond_the_count_is_not_meant_to_be_there() -> None:
    """It was taken away, not lost; of a GPU's instances nothing is assumed."""
    group = {"name": "fraud_features_0", "count": 2, "kind": "KIND_CPU"}
    steps = [Step("fraud_features", 1, f"fraud_features_0_{n}") for n in range(3)]
    running = {"instance_group": [group]}
    assert [is_meant(one, running) for one in steps] == [True, True, False]
    on_gpu = {"instance_group": [group | {"kind": "KIND_GPU"}]}
    assert is_meant(steps[2], on_gpu)
