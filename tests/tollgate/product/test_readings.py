"""A product of readings: made from a plain table, served, and judged by its alarms."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from tollgate.detection.alarm_budget import MachineReadings
from tollgate.detection.alarms import AlarmRule
from tollgate.detection.detector import detector_scores, train_detector
from tollgate.detection.reading_features import sensor_features
from tollgate.errors import ArgumentError, InputError
from tollgate.features.spec.feature_spec import load_spec
from tollgate.policy import load_policy
from tollgate.product.reading_table import ReadingChoices, read_readings
from tollgate.product.readings import (
    CreatedReadings,
    alarm_shares,
    chosen_rule,
    create_readings,
    excess_note,
)
from tollgate.repository.releases.release_file import find_current
from tollgate.repository.slo import read_slo
from tollgate.server.serving.embedded import serve
from tollgate.simulate.plant import Plant, simulate_plant
from tollgate.templating import yaml_number
from tollgate_client import Client, InvalidRequest

INTERVAL_S = 300


@pytest.fixture(scope="module")
def plant() -> Plant:
    """Four machines for eight days, and faults in the second half."""
    return simulate_plant(machines=4, days=8, interval_s=INTERVAL_S, faults=8, seed=2)


@pytest.fixture(scope="module")
def table(plant: Plant, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The readings as a user has them: other names, a text, a constant."""
    path = tmp_path_factory.mktemp("readings") / "plant.csv"
    plant.readings.rename(
        {"event_time": "measured at", "reading_id": "no"}
    ).with_columns(site=pl.lit("north"), version=pl.lit(3)).write_csv(path)
    return path


@pytest.fixture(scope="module")
def choices(table: Path) -> ReadingChoices:
    """Name the columns that the table does not explain itself."""
    return ReadingChoices(
        product="plant", table=table, machine="machine", time="measured at", id="no"
    )


def test_sensors_are_the_numbers_that_vary(choices: ReadingChoices) -> None:
    """Others are left out with a reason; rows are in the order of time."""
    found = read_readings(choices)
    assert found.sensors == ("temperature", "pressure", "vibration")
    assert found.excluded == {
        "site": "holds texts, such as 'north'",
        "version": "has the same number in every row",
    }
    assert found.aliases == {"event_time": "measured at", "transaction_id": "no"}
    assert found.frame["event_time"].is_sorted()
    # 74.1 °C or so is the most, and ten times as much is below 1,000 on both sides.
    assert found.ranges["temperature"] == (-1000.0, 1000.0)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"time": "when"}, ArgumentError, "no column 'when'"),
        ({"machine": "robot"}, ArgumentError, "no column 'robot'"),
        ({"id": "machine"}, ArgumentError, "'machine' has the same id in two rows"),
        ({"time": "site"}, ArgumentError, "'site' holds no times, such as 'north'"),
        (
            {"drop": ("temperature", "pressure", "vibration")},
            InputError,
            "no column of numbers is left that could be a sensor",
        ),
    ],
)
def test_unusable_choices_are_refused(
    choices: ReadingChoices,
    changes: dict[str, object],
    error: type[Exception],
    words: str,
) -> None:
    """With the column, and what is wrong with it."""
    with pytest.raises(error, match=words):
        read_readings(msgspec.structs.replace(choices, **changes))


def small_table(folder: Path, **columns: object) -> Path:
    """Write two readings of machine a, with these columns."""
    path = folder / "small.parquet"
    times = {"t": [1_700_000_000, 1_700_000_060], "m": ["a", "a"]}
    pl.DataFrame({**times, **columns}).write_parquet(path)
    return path


def test_names_leave_room_for_features_and_reason_codes(tmp_path: Path) -> None:
    """Long names, names of features, and names that differ in upper case alone."""
    given = ["x" * 70, "x" * 60, "temp", "TEMP", "temp_long_mean", "readings", "温度"]
    path = small_table(tmp_path, **{name: [1.0, 2.0] for name in given})
    found = read_readings(
        ReadingChoices(product="odd", table=path, machine="m", time="t")
    )
    made = [name for one in found.sensors for name in (one, *sensor_features(one))] + [
        "readings"
    ]
    assert len(set(made)) == len(made) == 7 * 24 + 1
    assert max(map(len, made)) <= 64
    assert len({one.upper() for one in found.sensors}) == len(given)
    assert [found.aliases.get(one, one) for one in found.sensors] == given


@pytest.mark.parametrize(
    ("value", "most"), [(101_325.0, 1e7), (4e8, 1e10), (0.02, 1.0), (3e12, 1e12)]
)
def test_ranges_follow_the_largest_value(
    tmp_path: Path, value: float, most: float
) -> None:
    """Up to ten times as much, and no more than can be stored."""
    path = small_table(tmp_path, v=[0.0, -value])
    found = read_readings(
        ReadingChoices(product="odd", table=path, machine="m", time="t")
    )
    assert found.ranges["v"] == (-most, most)


def test_columns_with_names_of_our_own_are_no_sensors(tmp_path: Path) -> None:
    """Their numbers have another meaning in every product; a machine is refused."""
    path = small_table(tmp_path, v=[1.0, 2.0], label=[0, 1], transaction_id=["a", "b"])
    choices = ReadingChoices(product="odd", table=path, machine="m", time="t")
    found = read_readings(choices)
    assert found.sensors == ("v",)
    assert set(found.excluded) == {"label", "transaction_id"}
    assert "rename it in the table" in found.excluded["label"]
    named = msgspec.structs.replace(choices, id="transaction_id")
    assert read_readings(named).frame["transaction_id"].to_list() == ["a", "b"]
    with pytest.raises(ArgumentError, match="'transaction_id' has a name that"):
        read_readings(msgspec.structs.replace(choices, machine="transaction_id"))


def test_a_machine_column_of_only_a_suffix_is_renamed(tmp_path: Path) -> None:
    """Without `_id`, no name of the entity would be left."""
    path = small_table(tmp_path, v=[1.0, 2.0], _id=["a", "a"])
    choices = ReadingChoices(product="odd", table=path, machine="_id", time="t")
    assert read_readings(choices).key == "_id_field"


def test_columns_of_lists_are_no_sensors(tmp_path: Path) -> None:
    """They are left out with their type."""
    path = small_table(tmp_path, v=[1.0, 2.0], spectrum=[[1.0], [2.0]])
    found = read_readings(
        ReadingChoices(product="odd", table=path, machine="m", time="t")
    )
    assert found.sensors == ("v",)
    assert found.excluded == {"spectrum": "holds List(Float64), not single values"}


def test_a_table_without_sensors_says_why(tmp_path: Path) -> None:
    """Such as one with decimal commas."""
    path = small_table(tmp_path, v=["1,5", "2,5"])
    choices = ReadingChoices(product="odd", table=path, machine="m", time="t")
    with pytest.raises(InputError, match="a sensor: v holds texts, such as '1,5'"):
        read_readings(choices)


def test_a_column_without_ids_is_named(tmp_path: Path) -> None:
    """With one of its values: here each is too long for a request."""
    path = small_table(tmp_path, v=[1.0, 2.0], long=["é" * 70, "é" * 70])
    choices = ReadingChoices(product="odd", table=path, machine="long", time="t")
    with pytest.raises(
        ArgumentError, match="'long' holds no ids of 1 to 128 bytes, such as 'éé"
    ):
        read_readings(choices)


def test_too_few_readings_are_refused_before_the_work(
    choices: ReadingChoices, plant: Plant, tmp_path: Path
) -> None:
    """The line says how many are left, how many are needed, and why."""
    path = tmp_path / "short.parquet"
    plant.readings[:1_600].write_parquet(path)
    short = msgspec.structs.replace(choices, table=path, time="event_time", id=None)
    steps: list[str] = []
    # Four machines take turns: 280 of each are the first 70 %, 181 of each with a past.
    with pytest.raises(
        InputError,
        match=r"1,600 readings of 4 machines .* 724 are left, and 1,000 .*"
        "About 1,995 readings",
    ):
        create_readings(
            short, repository=tmp_path, report=lambda step, text: steps.append(step)
        )
    assert "features" not in steps


def test_shares_are_checked_before_the_table_is_read(
    choices: ReadingChoices, tmp_path: Path
) -> None:
    """A mistake in an option takes no minutes."""
    wrong = msgspec.structs.replace(
        choices, watch_share=1.5, table=tmp_path / "missing.csv"
    )
    with pytest.raises(ArgumentError, match="not a share between 0 and 1"):
        create_readings(wrong, repository=tmp_path, report=lambda step, text: None)


@pytest.fixture(scope="module")
def created(
    choices: ReadingChoices, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, CreatedReadings]:
    """Create the product: this trains, converts, serves and compares it."""
    repository = tmp_path_factory.mktemp("created") / "models"
    repository.mkdir()
    made = create_readings(
        choices, repository=repository, report=lambda step, text: None
    )
    return repository, made


pytestmark = pytest.mark.slow


def test_served_scores_are_the_detectors(
    created: tuple[Path, CreatedReadings],
) -> None:
    """The trial compared them, and online vectors with offline ones."""
    _, made = created
    assert made.trial.compared == 128
    assert made.trial.largest_difference == 0.0
    assert made.trial.replayed > 1_000
    # Four machines, the last 30 % of eight days.
    assert made.machine_days == pytest.approx(4 * 8 * 0.3, rel=0.01)


def test_files_say_what_the_product_does(
    created: tuple[Path, CreatedReadings],
) -> None:
    """Own words, a rule for each sensor and side, an objective of 200 ms."""
    repository, made = created
    spec = load_spec(repository / "plant_features" / "1" / "features.yaml")
    policy = load_policy(
        repository / "plant_decision" / "1" / "policy.yaml",
        id_names=spec.id_names,
        feature_names=spec.feature_names,
        fields=spec.fields,
    )
    assert policy.outcomes.words == ("normal", "watch", "alarm")
    assert policy.hysteresis is not None
    assert policy.hysteresis.entity == "machine"
    assert policy.thresholds[0].review == made.rule.watch
    assert policy.thresholds[0].decline == made.rule.alarm > made.rule.watch
    assert made.budget == 1 / 30
    names = {rule.name for rule in policy.rules}
    for sensor in ("temperature", "pressure", "vibration"):
        for end in ("high_long", "low_longest", "stuck", "missing"):
            assert f"{sensor}_{end}" in names
    assert read_slo(repository, product="plant").latency_objective_ms == 200


def test_stuck_missing_and_absurd_sensors_are_named(
    created: tuple[Path, CreatedReadings], plant: Plant, tmp_path: Path
) -> None:
    """A frozen value, no value, one out of range: not scored as if fine."""
    repository, _ = created
    served = tmp_path / "models"
    shutil.copytree(repository, served)
    first = plant.readings.filter(pl.col("machine") == "M01")[:60]
    times = first["event_time"].cast(pl.Int64).to_list()

    def reading(at: int, **changes: float) -> dict[str, object]:
        row = first.row(at, named=True)
        sensors = {
            name: changes.get(name, row[name])
            for name in ("temperature", "pressure", "vibration")
        }
        return {
            "transaction_id": f"r{at}",
            "machine": "M01",
            "event_time": times[at],
            **sensors,
        }

    rows = [reading(at) for at in range(30)]
    rows += [reading(at, vibration=2.5) for at in range(30, 56)]
    rows.append(reading(56, pressure=float("nan")))
    absurd = reading(57, temperature=5_000.0)
    with (
        serve(served, products=("plant",), state=tmp_path / "state") as server,
        Client(
            server.grpc_url,
            product="plant",
            inputs={
                "transaction_id": "BYTES",
                "machine": "BYTES",
                "event_time": "INT64",
            },
            fields=dict.fromkeys(("temperature", "pressure", "vibration"), "FP64"),
            timeout_s=60.0,
            store_deadline_ms=10_000,
        ) as client,
    ):
        answers = [
            client.decide({name: [value] for name, value in row.items()})
            for row in rows
        ]
        with pytest.raises(
            InvalidRequest, match=r"temperature: 5000\.0: is not within"
        ):
            client.decide({name: [value] for name, value in absurd.items()})
    codes = ["|".join(one.reason_codes[0]) for one in answers]
    assert [one.decision[0] for one in answers[:29]] == ["normal"] * 29
    # The value is frozen from reading 30 on, 150 minutes after the first. The window of
    # 2 h begins at a quarter of an hour: for reading 54, at 270 minutes, at 150.
    stuck = ["VIBRATION_STUCK" in one for one in codes[:56]]
    assert stuck == [at >= 54 for at in range(56)]
    assert answers[55].decision[0] == "watch"
    assert "PRESSURE_MISSING" in codes[56]


def test_train_py_publishes_a_detector_of_a_newer_table(
    created: tuple[Path, CreatedReadings], tmp_path: Path
) -> None:
    """And a policy with its thresholds. Its table has a bad cell; the release stays."""
    repository, _ = created
    served = tmp_path / "models"
    shutil.copytree(repository, served)
    newer = simulate_plant(machines=3, days=8, interval_s=INTERVAL_S, faults=0, seed=9)
    pressure = newer.readings["pressure"].cast(pl.String)
    newer.readings.drop("reading_id").with_columns(
        pressure=pressure.scatter(7, "broken")
    ).write_csv(tmp_path / "newer.csv")
    done = subprocess.run(
        [sys.executable, served / "plant" / "train.py", tmp_path / "newer.csv"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "such as 'broken' in row 8: they count as missing" in done.stdout
    assert "vectors online = offline in every bit" in done.stdout
    assert "release activate --product plant" in done.stdout
    assert "--set model=2 --set decision=2 " in done.stdout.splitlines()[-1]
    old, new = (
        (served / "plant_decision" / version / "policy.yaml").read_text()
        for version in ("1", "2")
    )
    (watch,), (alarm,) = (
        re.findall(rf"^  {word}: (0\.\d+)$", new, re.MULTILINE)
        for word in ("watch", "alarm")
    )
    assert f"watch from {float(watch):.6f}, alarm from {float(alarm):.6f}" in (
        done.stdout
    )
    _, made = created
    numbers = {yaml_number(made.rule.watch): watch, yaml_number(made.rule.alarm): alarm}
    for before, after in numbers.items():
        assert before != after
        old = old.replace(before, after)
    assert new == old
    assert (served / "plant_model" / "2" / "model.onnx").is_file()
    current = find_current(served, product="plant")
    assert current is not None
    assert current.versions["plant_model"] == 1


def test_a_product_of_this_name_is_not_replaced(
    created: tuple[Path, CreatedReadings], choices: ReadingChoices
) -> None:
    """The first line of work refuses; nothing is written."""
    repository, _ = created
    before = sorted(path.name for path in repository.iterdir())
    with pytest.raises(InputError, match="plant"):
        create_readings(choices, repository=repository, report=lambda step, text: None)
    assert sorted(path.name for path in repository.iterdir()) == before


def test_shares_and_budgets_that_contradict_themselves_are_refused(
    choices: ReadingChoices,
) -> None:
    """The message names the option."""
    wide = msgspec.structs.replace(choices, watch_share=0.02, alarm_share=0.001)
    assert alarm_shares(wide) == (0.02, 0.001)
    for changes, problem in (
        ({"alarm_share": 0.5}, "more than the share to watch"),
        ({"watch_share": 1.5}, "not a share between 0 and 1"),
        ({"false_alarms": 0.0}, "false_alarms: is not a number above 0"),
        ({"false_alarms": 1.0, "alarm_share": 0.001}, "two ways to choose"),
    ):
        with pytest.raises(ArgumentError, match=problem):
            alarm_shares(msgspec.structs.replace(choices, **changes))


def test_thresholds_are_the_scores_of_shares_or_of_a_budget(
    choices: ReadingChoices,
) -> None:
    """2 % of the training rows reach the first score; few machines need shares."""
    random = np.random.default_rng(4)
    names = ("readings", "s", *sensor_features("s"))
    vectors = np.abs(random.normal(0, 1, (5_000, len(names)))).astype(np.float32)
    vectors[:, 0] = 500
    detector = train_detector(vectors, names, sensors=["s"])
    readings = MachineReadings(
        features=vectors,
        machine=np.zeros(5_000, np.int64),
        time_us=np.arange(5_000) * 60_000_000,
        trained=np.ones(5_000, np.bool_),
    )
    notes: list[str] = []

    def chosen(
        one: ReadingChoices, own: MachineReadings
    ) -> tuple[AlarmRule, float | None]:
        return chosen_rule(
            one,
            detector,
            own,
            interval_us=60_000_000,
            report=lambda step, text: notes.append(f"{step}: {text}"),
        )

    wide = msgspec.structs.replace(choices, watch_share=0.02, alarm_share=0.001)
    rule, budget = chosen(wide, readings)
    assert budget is None
    reached = (detector_scores(detector, vectors) >= rule.watch).mean()
    assert reached == pytest.approx(0.02, abs=0.002)
    # Every minute: 10,000 readings take less than 30 days.
    _, budget = chosen(choices, readings)
    assert budget == pytest.approx(0.144)
    _, budget = chosen(msgspec.structs.replace(choices, false_alarms=2.0), readings)
    assert budget == 2.0
    apart = msgspec.structs.replace(readings, machine=np.arange(5_000))
    rule, budget = chosen(choices, apart)
    assert budget is None
    assert notes[-1].startswith("note: thresholds are shares of the readings")


def test_more_alarms_than_the_budget_allows_name_a_sensor() -> None:
    """Two of three readings are far from the past by b, and one by a."""
    random = np.random.default_rng(5)
    names = ("readings", *(n for s in "ab" for n in (s, *sensor_features(s))))
    vectors = random.normal(0, 1, (3_000, len(names))).astype(np.float32)
    vectors[:, 0] = 500
    detector = train_detector(vectors, names, sensors=["a", "b"])
    for row, sensor in enumerate("abb"):
        for at, name in enumerate(names):
            if name.startswith(f"{sensor}_") and name.endswith(("_shift", "_gap")):
                vectors[row, at] = 50
    text = excess_note(detector, vectors[:3], allowed=1.25)
    assert text.startswith("3 alarms after the training, where the budget allows 1.2: ")
    assert "in 2 of them b surprises most" in text
