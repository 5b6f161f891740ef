"""Ratios, differences and rates, and what becomes of defaults within them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tollgate.features.assemble import assemble
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.features.windows.window_values import Sums

SPEC = """\
version: 1
product: shop
entities: {card: {key: card_id}}
fields: [{name: items, type: number, decimals: 1}]
features:
  - {name: amount, field: amount}
  - {name: items, field: items, default: 4, range: [0, 5]}
  - {name: n_1h, entity: card, aggregate: count, window: 1h, default: 9}
  - {name: n_1d, entity: card, aggregate: count, window: 1d, default: 8}
  - {name: per_item, ratio: [amount, items], default: -1}
  - {name: rush, rate_of_change: [n_1h, n_1d], default: -2, range: [-2, 20]}
  - {name: before, difference: [n_1d, n_1h], default: -3}
  - {name: chained, ratio: [per_item, before], default: -4}
"""


@pytest.fixture
def spec(tmp_path: Path) -> FeatureSpec:
    """A spec with each derived feature, and one of others."""
    path = tmp_path / "features.yaml"
    path.write_text(SPEC)
    return load_spec(path)


def test_derived_features_are_what_their_definition_says(spec: FeatureSpec) -> None:
    """By hand; clipped inputs count as clipped, and division by zero is the default."""
    count = np.array([[1, 6], [1, 1], [0, 0], [2, 2]])
    zeros = np.zeros_like(count)
    sums = Sums(count=count, cents=zeros, fraud=zeros, upto=zeros[:, 0])
    vectors = assemble(
        spec,
        cents=np.array([1000, 1000, 1000, 1000]),
        time_us=np.zeros(4, np.int64),
        sums=[sums],
        fields={"items": np.array([25, 0, MISSING, 90])},
    )
    assert vectors.tolist() == [
        [10.0, 2.5, 1, 6, 4.0, 4.0, 5.0, 0.8],
        [10.0, 0.0, 1, 1, -1.0, 20.0, 0.0, -4.0],
        [10.0, 4.0, 0, 0, -1.0, -2.0, 0.0, -4.0],
        [10.0, 5.0, 2, 2, 2.0, 20.0, 0.0, -4.0],
    ]


def test_without_a_store_what_hangs_on_it_is_its_own_default(spec: FeatureSpec) -> None:
    """And features of the request alone are computed all the same."""
    vectors = assemble(
        spec,
        sums=(),
        cents=np.array([1000]),
        time_us=np.zeros(1, np.int64),
        fields={"items": np.array([25])},
    )
    assert vectors.tolist() == [[10.0, 2.5, 9, 8, 4.0, -2.0, -3.0, -4.0]]


def test_a_chain_of_ratios_stays_within_float32(tmp_path: Path) -> None:
    """Dividing by the smallest number again and again ends at the largest float32."""
    path = tmp_path / "features.yaml"
    steps = "".join(
        f"  - {{name: r{n}, ratio: [r{n - 1}, items]}}\n" for n in range(1, 100)
    )
    path.write_text(
        SPEC[: SPEC.index("  - {name: n_1h")].replace(", range: [0, 5]", "")
        + "  - {name: n, entity: card, aggregate: count, window: 1d}\n"
        + f"  - {{name: r0, ratio: [amount, items]}}\n{steps}"
    )
    vectors = assemble(
        load_spec(path),
        sums=(),
        cents=np.array([10**9]),
        time_us=np.zeros(1, np.int64),
        fields={"items": np.array([1])},
    )
    largest = np.finfo(np.float32).max
    assert vectors[0, -1] == largest
    assert np.isfinite(vectors.astype(np.float32)).all()
