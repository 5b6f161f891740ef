"""Exact numbers: every float64 comes out as it went in, in order and in every bit."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest

from tollgate.audit.review.record_text import field_text
from tollgate.errors import SpecError
from tollgate.features.assemble import assemble, exact_features
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.policy import Policy, RowFacts, decide, load_policy
from tollgate.schema import (
    context_dtype,
    fields_text,
    float_places,
    floats_at,
    read_fields,
)
from tollgate.validation import check_fields

SPEC = """\
version: 1
product: spots
amount: false
fields:
  - {name: lat, type: number, decimals: exact, range: [-90, 90]}
  - {name: items, type: number, decimals: 2}
features:
  - {name: lat, field: lat, default: .nan}
  - {name: items, field: items}
"""
# 4 decimals, or a float32, cannot tell the first two apart.
VALUES = [52.12345611, 52.12345612, -1.1e-05, 1e-300, -3.5, 0.0, 89.999999999]


@pytest.fixture
def spec(tmp_path: Path) -> FeatureSpec:
    """The features above."""
    path = tmp_path / "features.yaml"
    path.write_text(SPEC)
    return load_spec(path)


def bits(value: float) -> bytes:
    """The 8 bytes of a double, as the standard library packs them."""
    return struct.pack("<d", value)


def test_places_follow_the_order_and_give_every_bit_back() -> None:
    """Python's own order of floats; infinities, subnormals; -0.0 comes back as 0.0."""
    chance = np.random.default_rng(3)
    drawn = chance.normal(size=500) * 10.0 ** chance.integers(-320, 308, 500)
    values = [*drawn.tolist(), math.inf, -math.inf, 5e-324, -5e-324, 0.0]
    places = float_places(np.array(values))
    by_place = sorted(range(len(values)), key=lambda at: int(places[at]))
    assert [values[at] for at in by_place] == sorted(values)
    assert [bits(one) for one in floats_at(places)] == [bits(one) for one in values]
    assert float_places(np.array([-0.0])).tolist() == [0]
    assert math.isnan(floats_at(np.array([MISSING]))[0])


def test_a_request_keeps_every_bit_up_to_the_context(spec: FeatureSpec) -> None:
    """Through validation, the vector and the packed record; NaN is missing."""
    sent = {"lat": np.array([*VALUES, math.nan]), "items": np.full(8, 1.234)}
    whole, errors = check_fields(spec.fields, sent)
    assert not errors
    assert whole["items"].tolist() == [123] * 8
    zeros = np.zeros(8, np.int64)
    made = assemble(spec, sums=(), cents=zeros, time_us=zeros, fields=whole)
    assert [bits(one) for one in made[:7, 0]] == [bits(one) for one in VALUES]
    assert math.isnan(made[7, 0])
    context = np.zeros(8, context_dtype((), spec.field_names))
    context["field_lat"] = whole["lat"]
    again = np.frombuffer(context.tobytes(), context.dtype)["field_lat"]
    assert [bits(one) for one in floats_at(again)[:7]] == [bits(one) for one in VALUES]


def test_the_wide_vector_has_the_numbers_that_were_sent(tmp_path: Path) -> None:
    """Of what is computed or missing it has the float32; a range cuts the float64."""
    path = tmp_path / "features.yaml"
    bounds = "range: [52.12345612, 90], default: 60"
    more = f"  - {{name: north, field: lat, {bounds}}}\n"
    ratio = "  - {name: share, ratio: [lat, items]}\n"
    path.write_text(SPEC + more + ratio)
    spec = load_spec(path)
    sent = {"lat": np.array([52.12345611, math.nan]), "items": np.array([19.99, 2.5])}
    whole, _ = check_fields(spec.fields, sent)
    zeros = np.zeros(2, np.int64)
    single = assemble(spec, sums=(), cents=zeros, time_us=zeros, fields=whole)
    served = single.astype(np.float32)
    found = exact_features(spec, served, cents=zeros, fields=whole)
    assert found[0].tolist() == [
        *(52.12345611, 19.99, 52.12345612),
        float(np.float32(52.12345611 / 19.99)),
    ]
    assert math.isnan(found[1, 0])
    assert found[1, 1:3].tolist() == [2.5, 60.0]


def test_a_number_out_of_range_is_refused_alone(spec: FeatureSpec) -> None:
    """Infinity and what is beyond the range, each by name and rule."""
    sent = {"lat": np.array([90.0, 90.00000001, math.inf, -90.1])}
    whole, errors = check_fields(spec.fields, sent)
    assert floats_at(whole["lat"])[0] == 90.0
    assert errors == {
        1: "lat: 90.00000001: is not within -90 … 90",
        2: "lat: inf: is not within -90 … 90",
        3: "lat: -90.1: is not within -90 … 90",
    }


@pytest.mark.parametrize("aggregate", ["sum", "mean"])
def test_sums_of_exact_numbers_are_refused(tmp_path: Path, aggregate: str) -> None:
    """They would depend on the order in which events come."""
    path = tmp_path / "features.yaml"
    over = f"{{name: s, entity: card, aggregate: {aggregate}, of: lat, window: 1d}}"
    entity = "entities: {card: {key: card_id}}\nfields:"
    path.write_text(SPEC.replace("fields:", entity, 1) + f"  - {over}\n")
    with pytest.raises(SpecError, match=r"'lat' is exact; a .* needs decimals: 0 to 4"):
        load_spec(path)


def test_decimals_are_a_count_or_exact(tmp_path: Path) -> None:
    """Five decimals are none of these."""
    path = tmp_path / "features.yaml"
    path.write_text(SPEC.replace("decimals: 2", "decimals: 5"))
    with pytest.raises(SpecError, match="5 is not within 0 … 4, nor exact"):
        load_spec(path)


def test_the_decision_step_reads_the_form_that_is_written(spec: FeatureSpec) -> None:
    """As `NAME=number:exact`."""
    text = fields_text(spec.fields)
    assert text == "lat=number:exact,items=number:2"
    assert [one.decimals for one in read_fields(text)] == [None, 2]


def test_records_show_the_number_as_it_was_sent(spec: FeatureSpec) -> None:
    """With all of its digits."""
    place = int(float_places(np.array([52.12345611]))[0])
    assert field_text("lat", place, spec) == "52.12345611"


POLICY = """
version: 1
product: spots
labels: [fine, bad]
score: bad
thresholds: {review: 0.5, decline: 0.9}
fallback: {model_output: review}
rules:
  - {name: north, owner: ops, when: {lat: {gt: 52.12345611, le: 60}},
     at_least: review, code: NORTH}
  - {name: here, owner: ops, when: {lat: {eq: -0.000011}}, at_least: review, code: HERE}
  - {name: gone, owner: ops, when: {lat: {missing: true}}, at_least: review, code: GONE}
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, NORTH: n, HERE: h,
  GONE: g}
"""


def test_a_policy_compares_the_float_itself(tmp_path: Path, spec: FeatureSpec) -> None:
    """Two numbers that a float32 cannot tell apart lie on two sides of a bound."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    policy: Policy = load_policy(
        path, feature_names=spec.feature_names, fields=spec.fields
    )
    sent = np.array([52.12345611, 52.12345612, -1.1e-05, math.nan, 60.00000001])
    whole, _ = check_fields(spec.fields, {"lat": sent})
    rows = len(sent)
    facts = RowFacts(
        probabilities=np.tile(np.float32([0.9, 0.1]), (rows, 1)),
        features=np.zeros((rows, 2), np.float32),
        cents=np.zeros(rows, np.int64),
        degraded=np.zeros(rows, np.uint32),
        event_time_us=np.zeros(rows, np.int64),
        list_hits=np.zeros(rows, np.uint32),
        fields=whole,
    )
    codes = [one.decode() for one in decide(facts, policy=policy).reason_codes]
    assert codes == ["", "NORTH", "HERE", "GONE", ""]
