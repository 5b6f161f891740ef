"""Faults are logged in a file of bounded size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tollgate.supervisor.fault_log import Fault, FaultLog, now_text, read_faults


def fault(part: str) -> Fault:
    """Make a fault up."""
    return Fault(
        time=now_text(),
        part=part,
        what="died",
        mended_s=0.5,
        outcome="mended",
        release="fraud-1",
    )


def test_faults_come_back_in_order_and_a_torn_line_costs_itself(tmp_path: Path) -> None:
    """As after a crash in the middle of writing."""
    log = FaultLog(tmp_path)
    log.add(fault("a"))
    with log.path.open("ab") as file:
        file.write(b'{"time": "2026\n')
    log.add(fault("b"))
    assert [one.part for one in read_faults(tmp_path)] == ["a", "b"]


def test_a_full_log_forgets_its_older_half(tmp_path: Path) -> None:
    """The newest are there, and the file stays within its bound."""
    log = FaultLog(tmp_path)
    for number in range(9_000):
        log.add(fault(f"part-{number}"))
    stored = [one.part for one in read_faults(tmp_path)]
    assert stored[-1] == "part-8999"
    assert stored[0] != "part-0"
    assert log.path.stat().st_size < 1.1 * (1 << 20)


def test_a_full_log_loses_nothing_that_is_added_meanwhile(tmp_path: Path) -> None:
    """Products are repaired in parallel; the log has the last faults of each."""
    log = FaultLog(tmp_path)
    text = "x" * 2_000
    each = 400

    def add(name: int) -> None:
        for number in range(each):
            log.add(fault(f"{name}-{number}-{text}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    stored: dict[str, list[int]] = {}
    for one in read_faults(tmp_path):
        name, number, _ = one.part.split("-")
        stored.setdefault(name, []).append(int(number))
    assert stored
    for numbers in stored.values():
        assert numbers == list(range(numbers[0], each))


def test_no_file_is_no_fault(tmp_path: Path) -> None:
    """A new state folder."""
    assert read_faults(tmp_path) == []
