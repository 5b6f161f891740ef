"""
Kill publishers at random moments and judge what each of them left.

    python tests/tollgate/server/kill_publishers.py --kills 200 [--dry-load]

Works on a copy of the project's repository and prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tollgate.repository.lint.product_rules import check
from tollgate.repository.releases.rendering import merged_configs
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.versions import PREFIX, list_versions
from tollgate.server.publishing import publish

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"
STEP = "fraud_model"


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files of a folder."""
    return {path.name: path.read_bytes() for path in folder.rglob("*")}


def start(source: Path, repository: Path, *, dry_load: bool) -> int:
    """Fork a publisher; its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        publish(
            source,
            repository=repository,
            product="fraud",
            dry_load=dry_load,
            measure=lambda model: {32: 1.0},  # work on files, not arithmetic
        )
        status = 0
    finally:
        os._exit(status)


def whole_run_s(source: Path, repository: Path, *, dry_load: bool) -> float:
    """Time publishers that are left alone, the slower of two."""
    taken_s = []
    for _ in range(2):
        started = time.monotonic()
        _, status = os.waitpid(start(source, repository, dry_load=dry_load), 0)
        assert status == 0, "a publisher that was left alone failed"
        taken_s.append(time.monotonic() - started)
    return max(taken_s)


def run(folder: Path, *, kills: int, dry_load: bool, seed: int) -> dict[str, object]:
    """Kill so many publishers; count what they left."""
    chance = random.Random(seed)
    repository, source = folder / "models", folder / "source"
    bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY, repository, ignore=bytecode)
    shutil.copytree(repository / STEP / "1", source)
    wanted = contents(source)
    release = (repository / "fraud" / "release.json").read_bytes()
    whole_s = whole_run_s(source, repository, dry_load=dry_load)
    found = {"kills": 0, "old": 0, "new": 0, "half": 0, "leftovers": 0, "unsound": 0}
    while found["kills"] < kills:
        before = list_versions(repository, STEP)
        child = start(source, repository, dry_load=dry_load)
        # Every second moment lies near the end, where the version comes into place.
        earliest_s = whole_s * (0.7 if found["kills"] % 2 else 0.0)
        time.sleep(chance.uniform(earliest_s, whole_s * 1.05))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or status == 0, "a publisher failed by itself"
        found["kills"] += os.WIFSIGNALED(status)
        # One that was faster is not counted. A machine is now busy, now idle: about
        # one in six shall be, so that the end is tried as often as the beginning.
        whole_s *= 1.02 if os.WIFSIGNALED(status) else 0.9
        after = list_versions(repository, STEP)
        if os.WIFSIGNALED(status):
            found["old"] += after == before
            found["new"] += after == [*before, before[-1] + 1]
            found["leftovers"] += any(folder.glob(f"{PREFIX}*"))
        found["half"] += sum(
            contents(repository / STEP / str(number)) != wanted
            for number in set(after) - set(before)
        )
        assert (repository / "fraud" / "release.json").read_bytes() == release
        assert len(merged_configs(repository, product="fraud")) == 4
    whole_run_s(source, repository, dry_load=dry_load)  # cleans up
    found["unsound"] = len(check(RepositorySnapshot(repository), product="fraud"))
    found["half"] += sum(
        contents(repository / STEP / str(number)) != wanted
        for number in list_versions(repository, STEP)
    )
    left = [str(path) for path in folder.rglob(f"{PREFIX}*")]
    return {**found, "left_at_the_end": left, "whole_run_s": round(whole_s, 3)}


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--dry-load", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tollgate-kills-") as name:
        found = run(
            Path(name), kills=given.kills, dry_load=given.dry_load, seed=given.seed
        )
    json.dump(found, sys.stdout)
    print()


if __name__ == "__main__":
    main()
