"""Records of decisions that a model and a policy really made, for tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import numpy as np

from tests.support.audit.random_records import REPOSITORY, made
from tollgate.audit.releases.past_release import OpenedRelease, open_release
from tollgate.journal.decision_record import Records
from tollgate.policy import RowFacts, decide


def opened(repository: Path = REPOSITORY, *, release: str = "fraud-1") -> OpenedRelease:
    """Open a release of the repository."""
    return open_release(release, archived=None, repository=repository, product="fraud")


def decided(
    rows: int,
    *,
    release: OpenedRelease | None = None,
    degraded: Mapping[int, int] | None = None,
    listed: Collection[int] = (),
    **more: object,
) -> Records:
    """
    Make records as a server does: rows alone through the model, then the policy.

    Args:
        rows: How many.
        release: Who decides; the repository's.
        degraded: Bits of some rows.
        listed: Rows whose ids are on the policy's first list.
        more: Of `made`.
    """
    by = release or opened()
    records = made(rows, release=by.name, **more)  # type: ignore[arg-type]
    features = vectors(rows, seed=records.first_sequence)
    model = by.model()
    answers = [model.probabilities(features[at : at + 1]) for at in range(rows)]
    probabilities = np.concatenate(answers)
    bits = records.degraded.copy()
    for row, value in (degraded or {}).items():
        bits[row] = value
    hits = records.list_hits.copy()
    hits[list(listed)] = 1
    found = decide(
        RowFacts(
            probabilities=probabilities,
            features=features,
            cents=records.cents,
            degraded=bits,
            event_time_us=records.event_time_us,
            list_hits=hits,
            fields=records.fields,
        ),
        policy=by.policy,
    )
    if by.policy.before_model:
        probabilities[list(listed)] = np.nan  # of the only such rule of these tests
    return msgspec.structs.replace(
        records,
        list_hits=hits,
        features=features,
        probabilities=probabilities,
        score=found.score,
        decision=found.decision,
        reason_codes=found.reason_codes.tolist(),
        degraded=found.degraded,
        rules=found.rules,
    )


def vectors(rows: int, *, seed: int) -> np.ndarray:
    """Draw vectors, many of them suspicious; float32 [N, 15]."""
    chance = np.random.default_rng([9, seed])
    bad = chance.random(rows) < 0.5
    count = chance.integers(1, 60, (rows, 3))
    features = np.zeros((rows, 15), np.float32)
    features[:, 0] = chance.uniform(1, 120, rows) * np.where(bad, 4, 1)
    features[:, 1:3] = chance.integers(0, 2, (rows, 2))
    features[:, 3:9:2] = np.sort(count, axis=1)
    features[:, 4:10:2] = chance.uniform(5, 90, (rows, 3))
    features[:, 9:15:2] = np.sort(count + 3, axis=1)
    features[:, 10:16:2] = chance.random((rows, 3)) * np.where(bad, 1, 0)[:, None]
    return features
