"""A repository with several challengers, and decisions in its stream."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import redis

from tests.support.audit.decided_records import decided, opened
from tests.support.audit.random_records import REPOSITORY
from tollgate.audit.worker.chunk_source import TRIAL_GROUP, ChunkSource
from tollgate.challenger.challenger_worker import TrialWorker
from tollgate.challenger.trials import TrialState, folder_of, newest
from tollgate.journal.decision_record import Records, encode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.repository.releases.activation import activate
from tollgate.repository.releases.release_file import Release, read_release
from tollgate.repository.releases.trial_changes import (
    promoted,
    with_challenger,
    with_percent,
)
from tollgate.repository.snapshot import RepositorySnapshot

STREAM = stream_key("fraud")
SHIFT = 1.0  # what model 2 adds to the logarithmic odds
EASY_GATES = "min_rows: 50\nflips_share: 1\np99_ms: 10000\nscore_psi: null\n"


def make_repository(folder: Path) -> Path:
    """
    Copy the product.

    Model 2 sees fraud e times as often to one; policy 2 reviews and declines more.
    """
    copy = folder / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(copy / "fraud_model/1", copy / "fraud_model/2")
    path = copy / "fraud_model/2/model.onnx"
    model = onnx.load(path)
    (base,) = [
        one for one in model.graph.node[0].attribute if one.name == "base_values"
    ]
    base.floats[0] += SHIFT
    onnx.save(model, path)
    record = copy / "fraud_model/2/artifact.json"
    record_json = json.loads(record.read_text())
    record_json["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    record.write_text(json.dumps(record_json))
    shutil.copytree(copy / "fraud_decision/1", copy / "fraud_decision/2")
    policy = copy / "fraud_decision/2/policy.yaml"
    text = policy.read_text()
    assert "review: 0.35" in text
    policy.write_text(text.replace("review: 0.35", "review: 0.01"))
    return copy


def gates(repository: Path, text: str) -> None:
    """Write the gates of the product."""
    (repository / "fraud/gates.yaml").write_text(f"version: 1\n{text}")


def begin(
    repository: Path, *, mode: Any = "shadow", percent: float = 5, **versions: int
) -> Release:
    """Start a challenger's trial."""
    current = read_release(repository, product="fraud")
    changed = with_challenger(
        RepositorySnapshot(repository),
        product="fraud",
        versions=versions,
        mode=mode,
        percent=percent,
        actor="ada",
        reason="better",
    )
    put(repository, changed, "challenger start", current)
    return changed


def grow(repository: Path, percent: float) -> None:
    """Raise a canary's share."""
    current = read_release(repository, product="fraud")
    changed = with_percent(
        RepositorySnapshot(repository),
        product="fraud",
        percent=percent,
        actor="ada",
        reason="well",
    )
    put(repository, changed, "challenger raise", current)


def promote(repository: Path) -> None:
    """Promote the challenger."""
    current = read_release(repository, product="fraud")
    put(
        repository,
        promoted(RepositorySnapshot(repository), product="fraud"),
        "promote",
        current,
    )


def put(repository: Path, release: Release, action: Any, current: Release) -> None:
    """Activate a release."""
    activate(
        RepositorySnapshot(repository),
        release,
        action=action,
        actor="ada",
        reason="better",
        instead_of=current,
    )


def send(client: redis.Redis, *records: Records) -> None:
    """Add decisions to the stream."""
    for one in records:
        client.xadd(STREAM, {CHUNK_FIELD: encode_chunk(one)})


def rows(repository: Path, count: int, *, release: str = "fraud-1", **more: Any) -> Any:
    """Decide rows like a server of that release."""
    by = opened(repository, release=release)
    return decided(count, release=by, **more)


def worker(
    repository: Path, url: str, *, on_step: Callable[[str], None] | None = None
) -> TrialWorker:
    """Create the trial worker."""
    return TrialWorker(
        ChunkSource(url, product="fraud", group=TRIAL_GROUP),
        repository=repository,
        product="fraud",
        folder=folder(repository),
        judge_s=0.05,
        on_step=on_step or (lambda step: None),
    )


def work(
    repository: Path, url: str, *, on_step: Callable[[str], None] | None = None
) -> TrialWorker:
    """Count and judge everything in the stream."""
    made = worker(repository, url, on_step=on_step)
    made.run(threading.Event(), until_idle_s=0.2)
    return made


def folder(repository: Path) -> Path:
    """Return the folder of its counts."""
    return folder_of(repository.parent / "state", "fraud")


def trial_state(repository: Path, *modes: Any) -> TrialState:
    """Read the counts of the last trial."""
    found = newest(folder(repository), modes=modes or ("shadow", "canary", "watch"))
    assert found is not None
    return found
