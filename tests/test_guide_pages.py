"""The how-to guides of docs/ show commands that run, and what these print."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import redis

from tollgate.policy.policy_document import read_document

CHECKOUT = Path(__file__).resolve().parent.parent


def blocks(page: str, kind: str) -> list[str]:
    """List the blocks of a kind in a page of docs/."""
    text = (CHECKOUT / "docs" / page).read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copy the model repository to where a guide may change it."""
    shutil.copytree(CHECKOUT / "model_repository", tmp_path / "model_repository")
    return tmp_path


def run(commands: str, folder: Path, *, status: int = 0) -> str:
    """Run lines of shell, with `tollgate` on PATH; what they print, without fill."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", commands],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def test_a_threshold_is_changed_and_rolled_back(folder: Path) -> None:
    """As the guide says: checked, compared, activated, and the old release again."""
    copy, compare, activate, rollback = blocks("change-a-threshold.md", "sh")
    (shown,) = blocks("change-a-threshold.md", "text")
    run(copy, folder)
    variable = copy.partition("\n")[0]
    assert run(f"{variable}\n{compare}", folder, status=1) == shown.strip()
    assert "+  decline: 0.85" in run(activate, folder)
    run(rollback, folder)
    policy = read_document(folder / "model_repository/fraud_decision/2/policy.yaml")
    assert policy.raw.thresholds["decline"] == 0.85
    release = folder / "model_repository" / "fraud" / "release.json"
    assert msgspec.json.decode(release.read_bytes())["name"] == "fraud-1"


def test_added_features_need_no_other_state(folder: Path) -> None:
    """The lines of the guide, at the end of the file, change the vector alone."""
    copy, diff = blocks("add-a-feature.md", "sh")
    (lines,) = blocks("add-a-feature.md", "yaml")
    run(copy, folder)
    with (folder / "features.yaml").open("a") as file:
        file.write(lines)
    (shown,) = blocks("add-a-feature.md", "text")
    assert shown.strip() in run(diff, folder)


def test_a_device_follows_the_tutorial(
    folder: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """Released, updated, rolled back, deceived in vain; four decisions are sealed."""
    del redis_client  # it empties the Redis
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def here(text: str) -> str:
        text = text.replace("127.0.0.1:8001", f"127.0.0.1:{port}")
        return text.replace("redis://127.0.0.1:6379", store_url)

    shell = [here(one) for one in blocks("device-tutorial.md", "sh")]
    first, decision = blocks("device-tutorial.md", "text")
    (program,) = blocks("device-tutorial.md", "py")
    (folder / "decide.py").write_text(here(program))
    sign, start, ask, release, rollback, deceive, collect = shell
    try:
        assert run(sign, folder).endswith(first.strip())
        run(start, folder)
        assert run(ask, folder) == decision.strip()
        assert run(release, folder).endswith("approve fraud-2")
        assert run(rollback, folder).endswith("approve fraud-1")
        assert "refused\napprove fraud-1\n" in run(deceive, folder)
        assert "\nsealed 4 decisions in 1 segments" in run(collect, folder)
    finally:
        if (folder / "run.pid").exists():
            run("kill $(cat run.pid) 2> /dev/null || true", folder)
