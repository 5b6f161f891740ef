"""No outcome is used before it was known, neither in training nor in a feature."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tollgate.cli import main
from tollgate.errors import InputError
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import load_spec
from tollgate.product import creation
from tollgate.product.rows import read_rows
from tollgate.product.splitting import DAY_US, split

DELAY = pd.Timedelta(days=7)
SPEC = """
version: 1
product: shop
amount: false
lateness: 1d
entities:
  terminal: {key: terminal}
fields:
  - {name: measure, type: number, decimals: 3, range: [0, 10000]}
features:
  - {name: measure, field: measure}
  - {name: frauds, entity: terminal, aggregate: flagged, window: 30d}
"""


class Stop(Exception):
    """The model would be trained now."""


@pytest.fixture
def table(tmp_path: Path) -> pd.DataFrame:
    """Write 1,500 rows of 90 days in no order; each has a measure of its own."""
    random = np.random.default_rng(0)
    seconds = np.sort(random.choice(90 * 86_400, 1500, replace=False))
    frame = pd.DataFrame(
        {
            "at": pd.Timestamp("2025-01-01") + pd.to_timedelta(seconds, unit="s"),
            "terminal": random.choice(["t1", "t2", "t3"], 1500),
            "measure": random.permutation(1500) + 0.125,
            "fraud": (random.random(1500) < 0.2).astype(int),
        }
    ).sample(frac=1, random_state=0)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return frame.reset_index(drop=True)


def used(table: pd.DataFrame) -> tuple[set[float], set[float]]:
    """Select with pandas the measures of the training rows and of the held-out rows."""
    known = table[table["at"] <= table["at"].max() - DELAY].sort_values("at")
    judged = known.tail(round(0.2 * len(known)))
    learned = known[known["at"] + DELAY <= judged["at"].min()]
    return set(learned["measure"]), set(judged["measure"])


def test_training_uses_only_outcomes_known_before_the_held_out_rows(
    table: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measures identify the rows that `product new` passes to training."""
    seen: list[Any] = []

    def train_model(features: Any, label: Any, **options: Any) -> Any:
        seen.append(features)
        raise Stop

    monkeypatch.setattr(creation, "train_model", train_model)
    monkeypatch.chdir(tmp_path)
    Path("model_repository").mkdir()
    command = "product new shop --from rows.csv --label fraud --time at --drop terminal"
    for delay, learned in (("7", used(table)[0]), ("0", None)):
        words = [*command.split(), "--label-delay", delay, "--yes"]
        monkeypatch.setattr(sys, "argv", ["tollgate", *words])
        with pytest.raises(Stop):
            main()
        found = {float(one) for one in seen[-1][:, -1]}
        assert len(found) == len(seen[-1])
        if learned is None:
            assert len(found) == 1200  # four fifths of all
        else:
            assert 500 < len(learned) < 1200
            assert found == learned


def test_train_py_uses_the_same_rows(table: pd.DataFrame, tmp_path: Path) -> None:
    """It reads the table again, which includes rows that are too young."""
    (tmp_path / "features.yaml").write_text(SPEC)
    path = tmp_path / "rows.csv"
    path.write_text(path.read_text().replace("at,", "event_time,", 1))
    path.write_text(path.read_text().replace(",fraud\n", ",label\n", 1))
    spec = load_spec(tmp_path / "features.yaml")
    delay_us = 7 * DAY_US
    rows = read_rows(path, spec=spec, positive="1", label_delay_us=delay_us)
    history = rows.history
    _, test = split(
        history.label,
        time_us=history.event_time_us,
        spec=spec,
        label_delay_us=delay_us,
    )
    vectors = build(spec, history)
    assert set(vectors[test, 0].tolist()) == used(table)[1]
    known = table[table["at"] <= table["at"].max() - DELAY]
    place = {measure: at for at, measure in enumerate(vectors[:, 0].tolist())}
    assert set(place) == set(known["measure"])

    flagged = vectors[:, 1]
    expected = np.zeros(len(flagged))
    for _, row in known.iterrows():
        then = known[
            (known["terminal"] == row["terminal"])
            & (known["at"] > row["at"] - pd.Timedelta(days=30))
            & (known["at"] + DELAY <= row["at"])
        ]
        expected[place[row["measure"]]] = then["fraud"].sum()
    assert len(set(expected)) > 10
    np.testing.assert_array_equal(flagged, expected)


def test_delay_without_training_rows_is_refused(
    table: pd.DataFrame, tmp_path: Path
) -> None:
    """The message has the delay and the remedy."""
    (tmp_path / "features.yaml").write_text(SPEC)
    spec = load_spec(tmp_path / "features.yaml")
    time_us = np.arange(100, dtype=np.int64) * DAY_US
    label = np.tile(np.array([0, 1], np.int8), 50)
    with pytest.raises(InputError, match="known after 80 days: before the last fifth"):
        split(label, time_us=time_us, spec=spec, label_delay_us=80 * DAY_US)


def test_a_delay_needs_times(
    table: pd.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line names the option that is missing."""
    monkeypatch.chdir(tmp_path)
    Path("model_repository").mkdir()
    command = "product new shop --from rows.csv --label fraud --label-delay 7 --yes"
    monkeypatch.setattr(sys, "argv", ["tollgate", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "tollgate: --label-delay: needs times: name their column with --time\n"
    )
