"""Synthetic training and served numbers of every shape."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from converters.folder import describe_training
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.monitor.tallies import CLUSTERS, MonitoredRows
from tollgate.monitor.training_baseline import Reference, reference_of
from tollgate.repository.models.artifact_file import Training
from tollgate.schema import ARTIFACT_FILE

NAMES = ("normal", "skewed", "count", "rare", "flag", "sparse", "holed")
ROWS = 60_000  # of training
DAY_US = 86_400_000_000
MONDAY_US = 1_750_032_000_000_000  # 2025-06-16T00:00:00Z

F32 = npt.NDArray[np.float32]


def drawn(rows: int, *, seed: int) -> F32:
    """Draw NAMES' columns, then a score; float32 [N, 8]."""
    chance = np.random.default_rng(seed)
    values = np.empty((rows, len(NAMES) + 1))
    values[:, 0] = chance.normal(50, 10, rows)
    values[:, 1] = chance.lognormal(3, 1, rows)
    values[:, 2] = chance.poisson(3, rows)
    values[:, 3] = np.where(chance.random(rows) < 0.005, 1, 0)
    values[:, 4] = chance.random(rows) < 2 / 7
    values[:, 5] = np.where(chance.random(rows) < 0.1, chance.random(rows), 0)
    values[:, 6] = np.where(chance.random(rows) < 0.3, np.nan, chance.random(rows))
    values[:, 7] = 1 / (1 + np.exp(-chance.normal(-6, 1.5, rows)))
    return values.astype(np.float32)


def training(values: F32) -> Training:
    """Describe training rows like a converter."""
    return describe_training(
        values[:, :-1], names=NAMES, label=None, score=values[:, -1]
    )


def trained_on(values: F32, *, spec: FeatureSpec | None = None) -> Reference:
    """Read the training distribution of an artifact.json."""
    text = msgspec.json.encode({"training": training(values)})
    found = reference_of({ARTIFACT_FILE: text}, spec)
    assert isinstance(found, Reference)
    return found


def rows_of(
    values: F32,
    *,
    seed: int = 0,
    customers: npt.NDArray[np.int64] | None = None,
    apart: npt.NDArray[np.bool_] | None = None,
    every_us: int = 1_000_000,
) -> MonitoredRows:
    """
    Make decisions of values.

    Args:
        values: float32 [N, C].
        seed: Of who asked.
        customers: Number of each row's; one each when None.
        apart: Rows with a bit that sets them apart.
        every_us: Time between two.
    """
    rows = len(values)
    chance = np.random.default_rng([5, seed])
    who = np.arange(rows) if customers is None else customers
    cluster = chance.integers(0, CLUSTERS, int(who.max()) + 1)[who]
    lost = np.zeros(rows, np.bool_) if apart is None else apart
    time_us = MONDAY_US + np.arange(rows) * every_us
    return MonitoredRows(
        values=values,
        cluster=cluster,
        valid=~lost,
        decision=(values[:, -1] > 0.5).astype(np.uint8) * 2,
        degraded=lost.astype(np.uint32),
        withheld=np.zeros(rows, np.bool_),
        foreign=np.zeros(rows, np.bool_),
        confidence=np.maximum(values[:, -1], 1 - values[:, -1]),
        decided_us=time_us,
        event_us=time_us,
    )
