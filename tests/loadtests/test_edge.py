"""Devices that are killed, offline or lose power have what they acknowledged."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from loadtests.edge.fleet import run_fleet
from loadtests.edge.half import Phase, measure_phases
from loadtests.edge.losses import Victim, build_library
from tests.support.edge.bundles import REPOSITORY, Keys, packed
from tollgate.edge.device import Device
from tollgate.edge.grpc_port import GrpcPort
from tollgate.edge.limits import Limits
from tollgate.edge.packing import pack


def victim(folder: Path, *, library: Path | None, unsynced: bool = False) -> Victim:
    """Pack the fraud product for a device that is killed."""
    keys = Keys(folder)
    return Victim(
        packed(keys, folder),
        key=keys.public,
        repository=REPOSITORY,
        folder=folder,
        library=library,
        unsynced=unsynced,
    )


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_with_a_kill(tmp_path: Path) -> None:
    """And the windows are those of a replay of the journal."""
    killed = victim(tmp_path, library=None)
    for _ in range(3):
        killed.kill(most_s=1.5)
    assert killed.losses.none, killed.losses
    assert killed.losses.acknowledged >= 3


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_with_the_power(tmp_path: Path) -> None:
    """Each kill takes every write that was not synced."""
    killed = victim(tmp_path, library=build_library(tmp_path))
    for _ in range(3):
        killed.kill(most_s=1.5)
    assert killed.losses.none, killed.losses
    assert killed.losses.acknowledged >= 3


@pytest.mark.slow
def test_a_device_that_does_not_wait_for_its_disk_is_found(tmp_path: Path) -> None:
    """The same without a sync at each commit loses decisions that were answered."""
    killed = victim(tmp_path, library=build_library(tmp_path), unsynced=True)
    killed.kill(most_s=1.5)
    assert killed.losses.lost > 0


def test_each_phase_names_the_variants_of_its_answers(tmp_path: Path) -> None:
    """With a processor half taken away, and given back."""
    keys = Keys(tmp_path)
    bundle = tmp_path / "fraud.bundle"
    pack(REPOSITORY, product="fraud", key=keys.signs, out=bundle, rules=True)
    processor = min(os.sched_getaffinity(0))
    phases = [Phase("first", 3.0, taken=False), Phase("second", 3.0, taken=True)]
    with (
        Device.open(
            bundle,
            key=keys.public,
            state=tmp_path / "state",
            limits=Limits(resident_mib=1.0),  # every process has more
        ) as device,
        GrpcPort(device, address="127.0.0.1:0") as server,
    ):
        lines = measure_phases(
            f"127.0.0.1:{server.port}", phases, rate=20.0, processor=processor
        )
    assert [line.partition(",")[0] for line in lines] == ["* first", "* second"]
    assert lines[1].endswith("answers by release: fraud-1.rules 60")
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_fleet_goes_back_and_loses_no_record(tmp_path: Path) -> None:
    """One of four is offline, and one is killed, while a rollback is ordered."""
    found = run_fleet(
        tmp_path, devices=4, offline=1, poll_s=1.0, offline_s=2.0, kills=1
    )
    assert len(found.online_s) == 3
    assert len(found.returned_s) == 1
    assert found.acknowledged == found.pushed == found.sealed > 4
    assert (found.lost, found.missing, found.findings) == (0, 0, 0)
