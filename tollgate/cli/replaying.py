"""Provide `replay_newest` to the training scripts of products, with a progress bar."""

from __future__ import annotations

from collections.abc import Sequence

from tollgate import feature_parity
from tollgate.cli import console
from tollgate.features.feature_tables import TableRows
from tollgate.features.spec.feature_spec import FeatureSpec, Table
from tollgate.history import History


def replay_newest(
    spec: FeatureSpec,
    history: History,
    tables: Sequence[tuple[Table, TableRows]] = (),
) -> int:
    """Compare the newest vectors online with offline; see `tollgate.feature_parity`."""
    with console.progress("replaying") as advance:
        return feature_parity.replay_newest(spec, history, tables, progress=advance)
