"""Decisions of a real server: drift is reported only after purchases change."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from tests.support.monitor.sealed_journals import LOOKED_US
from tests.tollgate.monitor.served_decisions import REPOSITORY, decide
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.monitor.journal_monitor import MonitorOptions, ProductMonitor
from tollgate.simulate import simulate

pytestmark = pytest.mark.slow

ROWS, SHIFT_FROM = 8_000, 3_000


def test_served_decisions_drift_when_purchases_do(
    spec: FeatureSpec, tmp_path: Path
) -> None:
    """
    A window as training was, then amounts times eight within the next: found in 5,000.

    The customers are others than the model was trained on, a tenth as many in a tenth
    of the place, and they shop as those do.
    """
    folder = decide(
        simulate(customers=500, terminals=1_000, radius=15.8, days=57, seed=5),
        spec=spec,
        from_day=datetime.date(2018, 5, 15),
        rows=ROWS,
        shift_from=SHIFT_FROM,
        state=tmp_path,
    )
    found = ProductMonitor(folder, repository=REPOSITORY, options=MonitorOptions())
    found.look(LOOKED_US)
    stream = found.streams["fraud-1"]
    assert stream.mix.rows == ROWS
    named = [[one.name for one in window.drifted] for window in stream.windows]
    assert len(named) == 3
    assert named[0] == []
    assert {"amount", "score"} <= set(named[2])
