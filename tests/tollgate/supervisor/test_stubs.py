"""Reading the Python steps out of /proc, over a /proc made by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tollgate.supervisor.stubs import Step, StubWatch, find_stubs, is_configured

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
    assert [is_configured(one, running) for one in steps] == [True, True, False]
    on_gpu = {"instance_group": [group | {"kind": "KIND_GPU"}]}
    assert is_configured(steps[2], on_gpu)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start processes that look like stubs of this process, and end them."""
    started = []

    def begin(model: str) -> subprocess.Popen[bytes]:
        script = tmp_path / model / "1" / "model.py"
        script.parent.mkdir(parents=True)
        script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
        words = list(stub_argv(model, 1, f"{model}_0_0"))
        words[1] = str(script)
        process = subprocess.Popen(
            words, executable=sys.executable, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_watch_sees_at_once_that_a_known_stub_stops_or_dies(
    start: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    """Over real processes, without a list of processes in between."""
    first, second = start("first"), start("second")
    watch = StubWatch()
    assert {one.pid for one in watch.scan(os.getpid())} == {first.pid, second.pid}
    first.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)
    stopped = {one.pid: one.stopped for one in watch.poll(os.getpid())}
    assert stopped == {first.pid: True, second.pid: False}
    first.send_signal(signal.SIGCONT)
    second.kill()
    os.waitid(os.P_PID, second.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert [one.step.model for one in watch.poll(os.getpid())] == ["first"]
    watch.close()


def test_a_watch_finds_a_new_stub(
    start: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    """At a scan, and by itself within a second or so; one that ended is gone."""
    old = start("old")
    watch = StubWatch()
    assert [one.pid for one in watch.poll(os.getpid())] == [old.pid]
    new = start("new")
    assert {one.pid for one in watch.scan(os.getpid())} == {old.pid, new.pid}
    newest = start("newest")
    while newest.pid not in {one.pid for one in watch.poll(os.getpid())}:
        time.sleep(0.01)
    new.kill()
    new.wait()
    assert {one.pid for one in watch.poll(os.getpid())} == {old.pid, newest.pid}
    assert watch.poll(old.pid) == []  # a process that has no children
    watch.close()
