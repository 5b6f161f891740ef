"""Aggregates that need every event: against libraries, and offline = online."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pytest
import scipy.stats

from tollgate.errors import SpecError
from tollgate.features.assemble import LARGEST
from tollgate.features.hook.hook_proof import prove, sample
from tollgate.features.offline import build
from tollgate.features.spec.description import compare, feature_text
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History, history_of
from tollgate.replay import purchases_of
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore

OpenStore = Callable[..., RedisStore]
F64 = npt.NDArray[np.float64]
HOUR_US = 3_600_000_000
START_US = 1_700_000_000_000_000
COUNT = 400

FEATURES = """\
version: 1
product: series
lateness: 60d
entities:
  customer: {key: customer_id}
  machine: {key: machine_id, delay: 6h}
  region: {key: region_id, hop: 1h}
fields:
  - {name: level, type: number, decimals: 3}
  - {name: spot, type: number, decimals: exact}
features:
  - {name: spot, field: spot}
  - {name: std, entity: customer, aggregate: std, window: 2d, default: -1}
  - {name: std_long, entity: customer, aggregate: std, window: 30d, of: level}
  - {name: std_late, entity: machine, aggregate: std, window: 7d, of: level}
  - {name: slope, entity: customer, aggregate: slope, window: 2d, default: -1}
  - {name: slope_long, entity: customer, aggregate: slope, window: 30d, of: level}
  - {name: second, entity: customer, aggregate: last, nth: 2, window: 2d, default: -1}
  - {name: second_late, entity: machine, aggregate: last, nth: 2, window: 7d, of: spot}
  - {name: change, entity: customer, aggregate: change, window: 2d}
  - {name: fifth, entity: customer, aggregate: change, nth: 5, window: 30d, of: spot}
  - {name: ewm, entity: customer, aggregate: ewm, half_life: 5h, window: 2d}
  - {name: ewm_long, entity: customer, aggregate: ewm, half_life: 9d, window: 30d,
     of: level}
  - {name: ewm_late, entity: machine, aggregate: ewm, half_life: 1h, window: 7d,
     of: level, default: -1}
  - {name: visits, entity: customer, aggregate: sessions, gap: 3h, window: 30d}
  - {name: visits_late, entity: machine, aggregate: sessions, gap: 1d, window: 7d}
  - {name: n, entity: region, aggregate: count, window: 30d}
  - {name: slope_late, entity: machine, aggregate: slope, window: 7d, of: level}
"""


def spec_of(folder: Path, *changes: tuple[str, str]) -> FeatureSpec:
    """Load the features above with texts replaced."""
    text = FEATURES
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "features.yaml"
    path.write_text(text)
    return load_spec(path)


def history_table() -> pl.DataFrame:
    """Purchases of few ids in random order, with ties and missing numbers."""
    source = np.random.default_rng(7)
    time_us = source.integers(0, 40 * 24, COUNT) * HOUR_US
    time_us += np.where(
        source.random(COUNT) < 0.5, source.integers(0, HOUR_US, COUNT), 0
    )
    level = np.round(source.normal(0, 10.0 ** source.integers(-2, 9, COUNT)), 3)
    return pl.DataFrame(
        {
            "transaction_id": [f"x{one}" for one in source.permutation(COUNT)],
            "event_time": time_us + START_US,
            "customer_id": [f"c{one}" for one in source.geometric(0.4, COUNT)],
            "machine_id": [f"m{one}" for one in source.geometric(0.4, COUNT)],
            "region_id": ["north", "south"] * (COUNT // 2),
            "amount": np.round(source.random(COUNT) * 10.0 ** (COUNT % 6), 2),
            "level": np.where(source.random(COUNT) < 0.2, np.nan, level),
            "spot": np.where(source.random(COUNT) < 0.2, np.nan, level / 3),
        }
    )


def history_in(spec: FeatureSpec) -> History:
    """Read the purchases as a history of a spec."""
    return history_of(history_table(), spec=spec, source="")


def windows_of(
    of: str, *, hours: int, key: str = "customer_id", delay: int = 0
) -> list[tuple[F64, F64]]:
    """Collect each purchase's window: hours since the start, and values that exist."""
    table = history_table()
    time_us = table["event_time"].to_numpy() - START_US
    values, ids = table[of].to_numpy(), table[key].to_numpy()
    names = table["transaction_id"].to_list()
    places = [(len(one), one) for one in names]
    order = sorted(range(COUNT), key=lambda row: (time_us[row], places[row]))
    found = []
    for row in range(COUNT):
        end_us = time_us[row] - delay * HOUR_US
        inside = [
            other
            for other in order
            if ids[other] == ids[row]
            and end_us - hours * HOUR_US < time_us[other] <= end_us
            and (delay or time_us[other] < end_us or places[other] <= places[row])
            and not np.isnan(values[other])
        ]
        found.append((time_us[inside] / HOUR_US, values[inside]))
    return found


@pytest.fixture
def computed(tmp_path: Path) -> dict[str, F64]:
    """The features of the purchases by name."""
    spec = spec_of(tmp_path)
    vectors = build(spec, history_in(spec))
    return dict(zip(spec.feature_names, vectors.T, strict=True))


WINDOWS = [
    ("", "amount", {"hours": 48}),
    ("_long", "level", {"hours": 720}),
    ("_late", "level", {"hours": 168, "key": "machine_id", "delay": 6}),
]


@pytest.mark.parametrize(("name", "of", "options"), WINDOWS)
def test_std_is_that_of_numpy(
    computed: dict[str, F64], name: str, of: str, options: dict[str, Any]
) -> None:
    """The population's; the default with fewer than two values."""
    default = 0.0 if name else -1.0
    wanted = [
        np.std(values) if len(values) > 1 else default
        for _, values in windows_of(of, **options)
    ]
    assert len(set(wanted)) > 100
    np.testing.assert_allclose(computed[f"std{name}"], wanted, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize(("name", "of", "options"), WINDOWS)
def test_slope_is_that_of_scipy(
    computed: dict[str, F64], name: str, of: str, options: dict[str, Any]
) -> None:
    """Least squares per hour; the default with fewer than two times."""
    default = 0.0 if name else -1.0
    wanted = [
        scipy.stats.linregress(hours, values).slope if len(set(hours)) > 1 else default
        for hours, values in windows_of(of, **options)
    ]
    assert len(set(wanted)) > 100
    np.testing.assert_allclose(computed[f"slope{name}"], wanted, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "half_life_h"), [(WINDOWS[0], 5), (WINDOWS[1], 216), (WINDOWS[2], 1)]
)
def test_ewm_is_that_of_pandas(
    computed: dict[str, F64], options: tuple[str, str, dict[str, Any]], half_life_h: int
) -> None:
    """Times decide the weights; the default without a value."""
    name, of, window = options
    wanted = []
    for hours, values in windows_of(of, **window):
        times = pd.to_datetime(hours * HOUR_US * 1000, unit="ns")
        means = pd.Series(values).ewm(
            halflife=pd.Timedelta(hours=half_life_h), times=times
        )
        default = -1.0 if name == "_late" else 0.0
        wanted.append(means.mean().iloc[-1] if len(values) else default)
    assert len(set(wanted)) > 100
    scale = max(map(abs, wanted))
    np.testing.assert_allclose(
        computed[f"ewm{name}"], wanted, rtol=1e-7, atol=scale * 2**-28
    )


@pytest.mark.parametrize(
    ("name", "options", "gap_h"), [("", WINDOWS[1], 3), ("_late", WINDOWS[2], 24)]
)
def test_sessions_are_those_of_pandas(
    computed: dict[str, F64],
    name: str,
    options: tuple[str, str, dict[str, Any]],
    gap_h: int,
) -> None:
    """Differences of times above the gap, and one for the first; 0 without any."""
    wanted = [
        int((pd.Series(hours).diff().fillna(np.inf) > gap_h).sum())
        for hours, _ in windows_of("amount", **options[2])
    ]
    assert len(set(wanted)) > 3
    np.testing.assert_array_equal(computed[f"visits{name}"], wanted)


@pytest.mark.parametrize("rows_at_once", [1, 2, 7, 31, 32])
def test_online_equals_offline_in_batches_of_any_size(
    tmp_path: Path, store_url: str, open_store: OpenStore, rows_at_once: int
) -> None:
    """
    The purchases arrive and are read in random order; every bit is the same.

    Values of a region, which has tiles, are read in the same batches; its purchases
    arrive too late for them, so its count is not compared.
    """
    spec = spec_of(tmp_path)
    history = history_in(spec)
    expected = build(spec, history)
    exact = [at for at, name in enumerate(spec.feature_names) if name != "n"]
    online = OnlineFeatures(spec, open_store(store_url, deadline_s=30.0))
    source = np.random.default_rng(rows_at_once)
    arriving = source.permutation(COUNT)
    for first in range(0, COUNT, 32):
        online.load(purchases_of(spec, history, arriving[first : first + 32]))
    rows = source.permutation(COUNT)
    for first in range(0, COUNT, rows_at_once):
        chosen = rows[first : first + rows_at_once]
        batch = purchases_of(spec, history, chosen)
        (vectors,) = online.score([batch], write=[False])
        np.testing.assert_array_equal(
            vectors.features[:, exact], expected[chosen][:, exact]
        )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "30d, of: level",
            "30d, of: spot",
            "features.std_long.of: 'spot' is exact; a std needs decimals: 0 to 4",
        ),
        (
            "aggregate: slope, window: 30d, of: level",
            "aggregate: slope, window: 30d, of: spot",
            "features.slope_long.of: 'spot' is exact; a slope needs decimals: 0 to 4",
        ),
        (
            "customer_id}",
            "customer_id, hop: 1h}",
            "features.ewm.ewm: needs every event: its entity must have hop: 0",
        ),
        (
            "aggregate: std, window: 2d",
            "aggregate: std, nth: 2, window: 2d",
            "features.std.nth: only last and change have one",
        ),
        (
            "half_life: 9d, window: 30d,\n     of: level",
            "half_life: 9d, window: 30d, of: spot",
            "features.ewm_long.of: 'spot' is exact; an ewm needs decimals: 0 to 4",
        ),
        ("half_life: 5h, ", "", "features.ewm: ewm needs its half_life"),
        ("gap: 3h, ", "", "features.visits: sessions needs its gap"),
        (
            "half_life: 5h",
            "half_life: soon",
            "features.ewm.half_life: 'soon' is not a duration like 30d, 12h, 5m or 10s",
        ),
        ("gap: 3h", "gap: 0s", "features.visits.gap: 0s holds nothing"),
        (
            "std, window: 2d",
            "std, gap: 1h, window: 2d",
            "features.std.gap: only sessions has one",
        ),
        (
            "std, window: 2d",
            "std, half_life: 1h, window: 2d",
            "features.std.half_life: only ewm has one",
        ),
        (
            "last, nth: 2",
            "last, nth: 0",
            "features.second.nth: 0 is not within 1 … 1024",
        ),
        (
            "change, nth: 5",
            "change, nth: 1",
            "features.fifth.nth: 1 is not within 2 … 1024",
        ),
    ],
)
def test_refusals_name_the_feature_and_the_reason(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    """One line with the file, the key and the reason."""
    with pytest.raises(SpecError) as caught:
        spec_of(tmp_path, (old, new))
    assert str(caught.value) == f"{tmp_path / 'features.yaml'}: {words}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("std", "standard deviation of amount, of the customer"),
        ("slope_late", "trend of level per hour, by least squares, of the machine"),
        (
            "ewm_late",
            "mean of level, weighted by half for each 1h of age, of the machine",
        ),
        (
            "visits",
            "number of sessions: purchases more than 3h after the one before, "
            "of the customer",
        ),
        (
            "second",
            "amount of the 2nd newest purchase before this one, of the customer",
        ),
        (
            "fifth",
            "spot of the newest purchase before this one, minus the 5th newest, "
            "of the customer",
        ),
    ],
)
def test_each_aggregate_is_described(tmp_path: Path, name: str, text: str) -> None:
    """The sentence that `features show` prints."""
    spec = spec_of(tmp_path)
    assert feature_text(spec.features[spec.feature_names.index(name)], spec) == text


@pytest.mark.parametrize(
    "feature",
    [
        "entity: customer, aggregate: ewm, half_life: 1h, window: 1d",
        "entity: customer, aggregate: sessions, gap: 1h, window: 1d",
        "entity: customer, aggregate: distinct, of: amount, window: 1d",
    ],
)
def test_an_entity_with_a_hop_lacks_the_events(tmp_path: Path, feature: str) -> None:
    """Each is refused by the feature's name; without the hop it is accepted."""
    text = (
        "version: 1\nproduct: series\nentities:\n"
        "  customer: {key: customer_id, hop: 1h}\n"
        f"features:\n  - {{name: one, {feature}}}\n"
    )
    path = tmp_path / "features.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"one\.\w+: needs every event: its entity"):
        load_spec(path)
    path.write_text(text.replace(", hop: 1h", ""))
    load_spec(path)


def test_the_newest_value_has_the_hash_of_last(tmp_path: Path) -> None:
    """`nth: 1` is `last` as it was; without `nth`, `change` reads the second."""
    spec = spec_of(tmp_path, ("last, nth: 2, window: 2d", "last, window: 2d"))
    same = spec_of(tmp_path, ("last, nth: 2", "last, nth: 1"))
    assert same.spec_hash == spec.spec_hash
    two = spec_of(tmp_path, ("change, window", "change, nth: 2, window"))
    assert two.spec_hash == spec_of(tmp_path).spec_hash != spec.spec_hash


def test_a_changed_aggregate_is_a_change_of_the_vector(tmp_path: Path) -> None:
    """A std in place of a slope over the same stored data."""
    old = spec_of(tmp_path)
    new = spec_of(
        tmp_path, ("aggregate: slope, window: 2d", "aggregate: std, window: 2d")
    )
    comparison = compare(old, new)
    assert (comparison.same_state, comparison.same_vector) == (True, False)
    (change,) = comparison.changes
    assert (change.feature, change.kind) == ("slope", "vector")
    assert change.details == ("aggregate: slope → std",)


@pytest.mark.parametrize(
    ("old", "new", "detail"),
    [
        ("change, nth: 5", "change, nth: 6", "nth: 5 → 6"),
        ("half_life: 9d", "half_life: 12h", "half_life: 9d → 12h"),
        ("gap: 3h", "gap: 4h", "gap: 3h → 4h"),
    ],
)
def test_a_changed_parameter_is_named(
    tmp_path: Path, old: str, new: str, detail: str
) -> None:
    """The same stored data, another vector."""
    comparison = compare(spec_of(tmp_path), spec_of(tmp_path, (old, new)))
    assert (comparison.same_state, comparison.same_vector) == (True, False)
    (change,) = comparison.changes
    assert change.details == (detail,)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("std", 0.0, LARGEST),
        ("slope", -LARGEST, LARGEST),
        ("change", -LARGEST, LARGEST),
        ("ewm_late", -1e9, 1e9),
        ("second", 0.0, 1e7),
        ("visits", 0.0, 1024.0),
    ],
)
def test_a_hook_is_proved_on_their_extremes(
    tmp_path: Path, name: str, low: float, high: float
) -> None:
    """The synthetic columns reach from the least to the largest value, and NaN."""
    code = f"def hook(request, features):\n    return {{'x': features['{name}']}}\n"
    (tmp_path / "hook.py").write_text(code)
    path = tmp_path / "features.yaml"
    hooked = FEATURES.replace("features:\n", "hook: hook.py\nfeatures:\n")
    path.write_text(f"{hooked}  - {{name: own, hook: x}}\n")
    spec = load_spec(path)
    assert spec.hook is not None
    column = sample(spec, spec.hook, rows=256, seed=1).features[name]
    assert (np.nanmin(column), np.nanmax(column)) == (low, high)
    assert np.isnan(column).any()
    assert prove(spec, spec.hook)
