"""The proposed windows suit the table, and the engine computes what they say."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.support.detection.readings import machine_readings
from tollgate.detection.reading_features import (
    LONG_WINDOWS,
    READINGS,
    SHORT_WINDOWS,
    build_features,
    feature_name,
    load_features,
    propose_features,
    sensor_features,
)
from tollgate.errors import InputError

MINUTE_US = 60 * 10**6
HOUR_US = 60 * MINUTE_US
# From docs/features.md, "Tiles".
WIDTHS_US = {
    "1s": 10**6,
    "10s": 10**7,
    "1m": MINUTE_US,
    "5m": 5 * MINUTE_US,
    "15m": 15 * MINUTE_US,
    "1h": HOUR_US,
    "6h": 6 * HOUR_US,
    "1d": 24 * HOUR_US,
}


def propose(table, *, sensors):
    """Propose the features of simulated readings."""
    return propose_features(
        table,
        product="pumps",
        machine="machine_id",
        sensors=[f"s{at}" for at in range(sensors)],
    )


def plain_windows(table, features):
    """
    Compute the features of one sensor row by row, from their definition alone.

    A window's begin is rounded down to the hop, or to the largest width that is at most
    1/24 of the window.
    """
    time_us = table["event_time"].cast(pl.Datetime("us")).cast(pl.Int64).to_numpy()
    machine = table["machine_id"].cast(pl.String).to_numpy()
    value = table["s0"].to_numpy()
    hop_us = WIDTHS_US.get(features.hop, 0)
    windows = dict(zip(SHORT_WINDOWS + LONG_WINDOWS, features.windows_us, strict=True))
    found = []
    for row, now in enumerate(time_us):
        own = {}
        for name, window_us in windows.items():
            begin = now - window_us
            if hop_us:
                fitting = [one for one in WIDTHS_US.values() if 24 * one <= window_us]
                begin -= begin % max([hop_us, *fitting])
            inside = (machine == machine[row]) & (time_us > begin) & (time_us <= now)
            own[name] = value[inside]
        line = {READINGS: len(own["longest"]), "s0": value[row]}
        for long in LONG_WINDOWS:
            mean, std = own[long].mean(), own[long].std()
            line[feature_name("s0", long, "min")] = own[long].min()
            line[feature_name("s0", long, "max")] = own[long].max()
            flat = own[long].min() == own[long].max()
            line[feature_name("s0", long, "deviation")] = (
                0 if flat else (value[row] - mean) / std
            )
            for short in SHORT_WINDOWS:
                line[feature_name("s0", long, short, "shift")] = (
                    0 if flat else (own[short].mean() - mean) / std
                )
        found.append(line)
    return pl.DataFrame(found, schema=dict.fromkeys(found[0], pl.Float64))


def compare(table, features):
    """Compare the engine's features with those that were computed row by row."""
    vectors, names = build_features(table, features)
    expected = plain_windows(table, features)
    for name in expected.columns:
        found = vectors[:, names.index(name)]
        assert found == pytest.approx(expected[name].to_numpy(), rel=1e-5, abs=1e-5), (
            name
        )


@pytest.mark.parametrize("sensors", [1, 6])
def test_the_engine_computes_the_proposed_features(sensors):
    """With the sums of a hop if the store can hold them, else exact."""
    table = machine_readings(rows=700, sensors=sensors)
    compare(table, propose(table, sensors=sensors))


def test_the_engine_computes_them_at_uneven_times():
    """The order of the table makes no difference."""
    table = machine_readings(rows=700, sensors=1)
    table = table.sample(fraction=0.7, shuffle=True, seed=0)
    compare(table, propose(table, sensors=1))


def test_the_engine_computes_them_for_published_readings(shared_data: Path):
    """Series of the Numenta Anomaly Benchmark, every 5 minutes, every hour, uneven."""
    table = pl.read_parquet(shared_data / "sensors" / "nab.parquet")
    table = table.with_columns(
        pl.col("series").cast(pl.String).alias("machine_id"),
        pl.col("timestamp").alias("event_time"),
        pl.col("value").round(4).alias("s0"),
    )
    for name in (
        "realAWSCloudwatch/ec2_cpu_utilization_53ea38.csv",
        "realAdExchange/exchange-3_cpm_results.csv",
        "realTraffic/speed_7578.csv",
    ):
        one = table.filter(pl.col("machine_id") == name).head(1_200)
        compare(one, propose(one, sensors=1))


@pytest.mark.parametrize(
    ("every", "brief", "short", "long"),
    [
        (timedelta(minutes=5), "30m", "2h", "1d"),
        (timedelta(hours=1), "6h", "1d", "12d"),
        (timedelta(seconds=1), "6s", "24s", "288s"),
    ],
)
def test_windows_follow_the_interval_of_readings(every, brief, short, long):
    """6, 24 and 288 readings."""
    table = machine_readings(rows=700, sensors=6, every=every)
    text = propose(table, sensors=6).text
    assert f"s0_brief_mean, entity: machine, aggregate: mean, window: {brief}" in text
    assert f"s0_short_mean, entity: machine, aggregate: mean, window: {short}" in text
    assert f"s0_long_mean, entity: machine, aggregate: mean, window: {long}" in text


def test_windows_without_a_hop_hold_fewer_readings_than_the_store():
    """Readings in bursts shorten the windows; a machine still has two lengths."""
    table = machine_readings(rows=3_000, sensors=6, machines=1)
    times = table["event_time"].to_list()
    times[500:1_700] = [times[500] + timedelta(seconds=at) for at in range(1_200)]
    table = table.with_columns(pl.Series("event_time", sorted(times)))
    with pytest.raises(InputError, match="1,024 readings of a machine come within"):
        propose(table, sensors=6)
    times = [datetime(2024, 1, 1) + timedelta(minutes=5 * at) for at in range(3_000)]
    for at in range(500, 1_700):
        times[at] = times[500] + timedelta(minutes=3 * (at - 500))
    table = table.with_columns(pl.Series("event_time", sorted(times)))
    features = propose(table, sensors=6)
    assert features.windows_us[2] < features.windows_us[3] < 1_008 * 5 * MINUTE_US
    build_features(table, features)


def test_sixteen_sensors_have_features():
    """As many as an entity stores; each has 24, and the readings are counted once."""
    table = machine_readings(rows=700, sensors=16, machines=1)
    spec = load_features(propose(table, sensors=16))
    assert len(spec.features) == 1 + 16 * 24


def test_decimals_are_those_of_the_values():
    """At most four, and fewer where large values need the room."""
    table = machine_readings(rows=700, sensors=3, machines=1).with_columns(
        pl.col("s0").round(0),
        pl.col("s1") / 3,
        pl.col("s2") * 1e7 + 0.123,
    )
    text = propose(table, sensors=3).text
    assert "{name: s0, type: number, decimals: 0}" in text
    assert "{name: s1, type: number, decimals: 4}" in text
    assert "{name: s2, type: number, decimals: 1}" in text


@pytest.mark.parametrize(
    ("most", "read"), [(1e6, 1e6), (1_234_567.8, 1_234_567.8), (1e12, 1e10)]
)
def test_ranges_of_large_numbers_are_read_back(most, read):
    """Powers of ten and all digits, as far as numbers with two decimals are stored."""
    table = machine_readings(rows=700, sensors=1, machines=1)
    features = propose_features(
        table,
        product="pumps",
        machine="machine_id",
        sensors=["s0"],
        ranges={"s0": (-most, most)},
    )
    (field,) = load_features(features).numbers.values()
    unit = 10**field.decimals
    assert (field.low / unit, field.high / unit) == (-read, read)


def test_all_features_of_a_sensor_are_named():
    """As features.yaml lists them, besides the sensor and the count."""
    table = machine_readings(rows=700, sensors=1, machines=1)
    spec = load_features(propose(table, sensors=1))
    assert {"readings", "s0", *sensor_features("s0")} == set(spec.feature_names)


def test_bad_tables_are_refused():
    """The column and the remedy are named."""
    table = machine_readings(rows=50, sensors=1)
    with pytest.raises(
        InputError, match="s1: column missing; the table has machine_id"
    ):
        propose(table, sensors=2)
    with pytest.raises(InputError, match="sensors: 0 columns"):
        propose(table, sensors=0)
    with pytest.raises(InputError, match=r"s0: 4 decimals can be stored.*smaller unit"):
        propose(table.with_columns(pl.col("s0") * 1e-5), sensors=1)
    with pytest.raises(InputError, match=r"s0: a value is .*e\+13.*larger unit"):
        propose(table.with_columns(pl.col("s0") * 1e12), sensors=1)
    with pytest.raises(InputError, match="s0: has no value"):
        propose(table.with_columns(pl.lit(np.nan).alias("s0")), sensors=1)
    with pytest.raises(InputError, match="no machine has readings at two times"):
        propose(table.group_by("machine_id").first(), sensors=1)
    holes = table.with_columns(
        pl.when(pl.int_range(pl.len()) != 6).then("event_time").alias("event_time")
    )
    with pytest.raises(InputError, match="event_time: is null in row 7"):
        propose(holes, sensors=1)
