"""
Decide simulated purchases on a real server, seal them, and monitor what was sealed.

    python tests/tollgate/monitor/served_decisions.py --rows 50000
    python tests/tollgate/monitor/served_decisions.py --rows 20000 --shift-from 10000

The second lets amounts grow eightfold from there on, as `distribution-shift` of the
load tests does. The whole history is that of `tollgate demo`, the model the checked-in
one.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
from typer.testing import CliRunner

from tollgate import pipeline
from tollgate.cli.app import app
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import history_of
from tollgate.replay import purchases_in_reach
from tollgate.repository.releases.served_versions import served_spec
from tollgate.server.serving.embedded import serve
from tollgate.simulate import simulate

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"
AMOUNT_TIMES = 8
FROM_DAY = datetime.date(2018, 8, 8)  # the demo's


def decide(
    simulated: pl.DataFrame,
    *,
    spec: FeatureSpec,
    from_day: datetime.date,
    rows: int,
    shift_from: int | None,
    state: Path,
) -> Path:
    """
    Serve, decide, seal.

    Args:
        simulated: A history.
        spec: The fraud product's features.
        from_day: From when on purchases are decided; those before fill the store.
        rows: How many.
        shift_from: From which on amounts grow; None for none.
        state: Folder for the state and a copy of the repository; it may be empty.

    Returns:
        The journal's folder.
    """
    whole = history_of(simulated, spec=spec, source="simulated")
    from_us = int(np.datetime64(from_day, "us").astype(np.int64))
    first = int(np.searchsorted(whole.event_time_us, from_us))
    until_us = int(whole.event_time_us[first + rows - 1]) + 1
    part = purchases_in_reach(whole, spec=spec, from_us=from_us, until_us=until_us)
    if shift_from is not None:
        at = int(np.searchsorted(part.event_time_us, from_us)) + shift_from
        cents = part.cents.copy()
        cents[at:] *= AMOUNT_TIMES
        part = msgspec.structs.replace(part, cents=cents)
    repository = _patient(state / "repository")
    with serve(repository, products=("fraud",), state=state / "state") as server:
        answers = pipeline.decide_history(
            part,
            spec=spec,
            grpc_url=server.grpc_url,
            store_url=server.store_url,
            decide_from_us=from_us,
            batch_rows=16,
            in_flight=4,
        )
        for _ in answers:
            pass
        folder = state / "state" / "journal" / "fraud"
        where = ("--folder", str(folder), "--journal-url", server.store_url)
        _run("journal", "run", *where, "--until-idle")
    return folder


def _patient(copy: Path) -> Path:
    """Copy the repository with long deadlines: a busy machine degrades no rows."""
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / "fraud_features" / "config.pbtxt"
    old = 'key: "store_deadline_ms" value { string_value: "5" }'
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, old.replace('"5"', '"2000"')))
    return copy


def _run(*arguments: str) -> None:
    """Run a command that must succeed."""
    known = ("--repository", str(REPOSITORY))
    done = CliRunner().invoke(app, [*arguments, *known])
    assert done.exit_code == 0, done.output + repr(done.exception)


def main() -> int:
    """Decide, seal, and run the command as its user would."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--shift-from", type=int, default=None)
    given = parser.parse_args()
    spec = served_spec(REPOSITORY, product="fraud")
    with tempfile.TemporaryDirectory(prefix="tollgate-") as home:
        folder = decide(
            simulate(),
            spec=spec,
            from_day=FROM_DAY,
            rows=given.rows,
            shift_from=given.shift_from,
            state=Path(home),
        )
        command = ("monitor", "--folder", str(folder), "--repository", str(REPOSITORY))
        sys.argv = ["tollgate", *command]
        app(standalone_mode=True)
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
