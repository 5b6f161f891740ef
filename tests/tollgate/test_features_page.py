"""The example of docs/features.md: its file loads, and its numbers are computed."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tollgate.features.offline import build
from tollgate.features.spec.description import feature_text
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.spec.spec_document import (
    Aggregate,
    RawEntity,
    RawFeature,
    RawFeed,
    RawField,
    RawSpec,
    RawTable,
)
from tollgate.history import history_of
from tollgate.repository.models.hook_trial import prove_hook

PAGE = (Path(__file__).parents[2] / "docs" / "features.md").read_text()


def block(kind: str) -> str:
    """Take the page's one block of a kind."""
    (text,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return text


@pytest.fixture
def example(tmp_path: Path) -> FeatureSpec:
    """The features.yaml of the page."""
    path = tmp_path / "features.yaml"
    path.write_text(block("yaml"))
    return load_spec(path)


def test_the_numbers_are_those_of_the_page(example: FeatureSpec) -> None:
    """All features of all purchases, to the digits that are printed."""
    frame = pl.read_csv(io.StringIO(block("csv")), infer_schema=False)
    vectors = build(example, history_of(frame, spec=example, source="features.md"))
    head, *lines = block("results").splitlines()
    assert head.split() == frame["transaction_id"].to_list()
    assert [line.split()[0] for line in lines] == list(example.feature_names)
    printed = np.array([line.split()[1:] for line in lines], np.float64).T
    np.testing.assert_allclose(vectors, printed, rtol=1e-5)


def test_purchase_four_is_what_the_page_derives_by_hand(example: FeatureSpec) -> None:
    """The sentence below the table, as arithmetic."""
    frame = pl.read_csv(io.StringIO(block("csv")), infer_schema=False)
    vectors = build(example, history_of(frame, spec=example, source="features.md"))
    got = dict(zip(example.feature_names, vectors[3].tolist(), strict=True))
    wanted = {
        "n_1d": 3,
        "n_1h": 2,
        "mean": (500 + 8000 + 1000) / 300,
        "basket": (4 + 0) / 2,
        "most": 50,
        "before": 80,
        "gap": 1800,
        "earlier": 5,
        "step": 75,
        "visits": 2,
        "spread": math.sqrt(3 * 65_250_000 - 9_500**2) / 300,
        "channel": -2,
        "risk": 1,
        "per_item": -1,
        "rush": 2 / 3 * 24,
    }
    assert {name: got[name] for name in wanted} == wanted
    assert got["trend"] == pytest.approx((3 * -97.5 + 12 * 95) / (3 * 132.5 - 12**2))
    assert got["lately"] == pytest.approx((10 + 80 / 2) / 1.5, rel=1e-6)


def test_the_hook_of_the_page_makes_its_numbers(tmp_path: Path) -> None:
    """The example with the block added to it, and the code beside it."""
    head, _, features = block("hooked").partition("features:\n")
    path = tmp_path / "features.yaml"
    path.write_text(f"{head}{block('yaml')}{features}")
    (tmp_path / "hook.py").write_text(block("python"))
    spec = load_spec(path)
    assert prove_hook(path) is not None
    frame = pl.read_csv(io.StringIO(block("csv")), infer_schema=False)
    vectors = build(spec, history_of(frame, spec=spec, source="features.md"))
    lines = block("hooked-results").splitlines()[1:]
    printed = np.array([line.split()[1:] for line in lines], np.float64).T
    assert tuple(line.split()[0] for line in lines) == spec.feature_names[-2:]
    np.testing.assert_allclose(vectors[:, -2:], printed, rtol=1e-5)
    surge = np.log(10 / (95 / 3)) * 2
    assert vectors[3, -2:].tolist() == pytest.approx([np.cos(np.pi / 6), surge])


def test_every_key_and_aggregate_is_on_the_page(example: FeatureSpec) -> None:
    """A key that the code reads and the page does not name would be a secret."""
    structs = (RawSpec, RawEntity, RawField, RawFeature, RawFeed, RawTable)
    names = {name for struct in structs for name in struct.__struct_fields__}
    names |= set(Aggregate.__args__)
    for name in names - {"name"}:
        assert re.search(rf"`{name}\b|^  ?-? ?.*\b{name}:", PAGE, re.MULTILINE), name
    for feature in example.features:
        assert feature_text(feature, example)
