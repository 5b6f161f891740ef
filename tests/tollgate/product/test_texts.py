"""The files of a new product are valid and have the intended values."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import math
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pytest
import yaml

from tollgate.features.spec.feature_spec import load_spec, wire_inputs
from tollgate.history.request_columns import wire_fields
from tollgate.policy import load_policy
from tollgate.product.choices import ProductChoices
from tollgate.product.files import (
    ask_text,
    bounds,
    build_features,
    config_texts,
    policy_text,
    write_texts,
)
from tollgate.product.plan import Plan, make_plan
from tollgate.product.thresholds import Rates, choose_thresholds
from tollgate.repository.product_models import read_product
from tollgate.repository.slo import read_slo
from tollgate.schema import MISSING, Outcomes, context_dtype
from tollgate.templating import yaml_list, yaml_number, yaml_text

ROWS = 400
CHANCE = np.random.default_rng(2)
ODD_WORDS = [
    "no",
    "y",
    "null",
    "1",
    "01",
    "a, b",
    'say "so"',
    "# x",
    "größe",
    "a: b",
    "~",
]


@dataclasses.dataclass
class Written:
    """A product with its files, without a model."""

    plan: Plan
    folder: Path
    rows: pl.DataFrame
    features: np.ndarray


def written(folder: Path, *, windows: bool) -> Written:
    """Plan a product from a small table, and write its files."""
    value = CHANCE.normal(size=ROWS).round(2)
    columns = {
        "debt ratio": [None if at % 9 == 0 else one for at, one in enumerate(value)],
        "word": [ODD_WORDS[at % len(ODD_WORDS)] for at in range(ROWS)],
        "who": [f"c{at % 20}" for at in range(ROWS)],
        "when": [1_700_000_000 + at * 40_000 for at in range(ROWS)],
        "paid": (np.abs(value) * 10).round(2),
        "kind": ["it's" if at % 3 else "other" for at in range(ROWS)],
    }
    table = folder / "odd 'name\"\nhop: 1.parquet"
    pl.DataFrame(columns, strict=False).write_parquet(table)
    roles = {"entities": ("who",), "time": "when", "amount": "paid"} if windows else {}
    drop = () if windows else ("who", "when")
    plan = make_plan(
        ProductChoices(
            product="shop",
            table=table,
            label="kind",
            positive="it's",
            drop=drop,
            sensitive=("word",) if windows else (),
            **roles,
        )
    )
    models = folder / "models"
    missing = {one.name: math.nan for one in plan.fields}
    spec, rows, features, _ = build_features(
        plan, models, fields=plan.fields, missing=missing
    )
    chosen = choose_thresholds(
        CHANCE.random(ROWS),
        rows.history.label,
        goal=Rates(review=0.1, decline=0.1),
        origin="drawn by chance",
    )
    write_texts(
        plan,
        models,
        spec=spec,
        thresholds=chosen,
        kind="boosting",
        seen=False,
        wide=False,
    )
    (models / "shop_model" / "1").mkdir()
    return Written(plan, models, rows.frame, features)


@pytest.fixture(params=[False, True], ids=["rows alone", "windows"])
def product(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    """Return a product with windows, or one without."""
    return written(tmp_path, windows=request.param)


def test_configurations_have_the_sizes_of_the_features(product: Written) -> None:
    """Triton's parser reads them; vector and context fit features.yaml."""
    spec = load_spec(product.folder / "shop_features" / "1" / "features.yaml")
    models = read_product(product.folder, "shop")
    assert list(models.steps) == ["shop_features", "shop_model", "shop_decision"]
    context = context_dtype(spec.entity_names, spec.field_names).itemsize
    decision = {one.name: list(one.dims) for one in models.steps["shop_decision"].input}
    assert decision["features"] == [len(spec.features)]
    assert decision["context"] == [context]
    inputs = [one.name for one in models.ensemble.input]
    assert inputs == [*spec.columns, *spec.field_names]
    optional = {one.name for one in models.ensemble.input if one.optional}
    assert optional == set(spec.field_names)
    slo = read_slo(product.folder, product="shop")
    assert (slo.latency_objective_ms, slo.layers_ms.model) == (50, 20)


def test_policy_fits_the_features(product: Written) -> None:
    """It compiles, with the chosen thresholds."""
    spec = load_spec(product.folder / "shop_features" / "1" / "features.yaml")
    policy = load_policy(
        product.folder / "shop_decision" / "1" / "policy.yaml",
        feature_names=spec.feature_names,
        fields=spec.fields,
        id_names=spec.id_names,
        amount=spec.amount,
    )
    assert policy.labels == ("not_kind_it_s", "kind_it_s")
    assert policy.sensitive == product.plan.choices.sensitive
    review, decline = (
        policy.thresholds[0].review,
        policy.thresholds[0].decline,
    )
    assert 0 < review <= decline <= 1


def test_policy_can_have_other_outcomes(product: Written, tmp_path: Path) -> None:
    """Also with a word that YAML would read as a boolean; thresholds stay the same."""
    own = Outcomes(("no", "watch", "alarm"))
    choices = msgspec.structs.replace(product.plan.choices, outcomes=own)
    plan = msgspec.structs.replace(product.plan, choices=choices)
    chance = np.random.default_rng(4)
    label = (chance.random(500) < 0.3).astype(np.int8)
    goal = Rates(review=0.1, decline=0.1)
    chosen = choose_thresholds(
        chance.random(500), label, goal=goal, origin="drawn by chance"
    )
    path = tmp_path / "policy.yaml"
    path.write_text(policy_text(plan, chosen, seen=False))
    policy = load_policy(path, feature_names=())
    assert policy.outcomes == own
    assert (policy.thresholds[0].review, policy.thresholds[0].decline) == (
        chosen.review,
        chosen.decline,
    )
    assert {"SCORE_WATCH", "SCORE_ALARM"} <= policy.reasons.keys()
    spec = load_spec(product.folder / "shop_features" / "1" / "features.yaml")
    text = config_texts(spec, outcomes=own)["shop/config.pbtxt"]
    assert "# The outputs, per row: no, watch or alarm (empty" in text


def test_policy_of_an_external_model_calls_no_rows_held_out(
    product: Written,
) -> None:
    """The model may have been trained on these rows; the comment says so."""
    chance = np.random.default_rng(4)
    label = (chance.random(500) < 0.3).astype(np.int8)
    chosen = choose_thresholds(
        chance.random(500), label, goal=Rates(), origin="drawn by chance"
    )
    text = policy_text(product.plan, chosen, seen=True).replace("\n# ", " ")
    assert "Chosen on 500 rows (drawn by chance)" in text
    assert "may have been trained on them" in text
    assert "held-out" not in text


def test_scripts_are_valid_python(product: Written) -> None:
    """Also with unusual names; the call has the values of its row."""
    ast.parse((product.folder / "shop" / "train.py").read_text())
    spec = load_spec(product.folder / "shop_features" / "1" / "features.yaml")
    wire = {"inputs": wire_inputs(spec), "fields": wire_fields(spec, product.rows)}
    tree = ast.parse(ask_text(product.rows, row=5, product="shop", **wire))
    ast.parse(
        ask_text(product.rows, row=0, product="shop", **wire)
    )  # a number is missing
    rows = next(
        one.value
        for one in tree.body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "ROWS"
    )
    assert isinstance(rows, ast.Dict)
    sent = dict(zip(map(ast.literal_eval, rows.keys), rows.values, strict=True))
    assert set(sent) == {*spec.columns, *spec.field_names}
    for name in spec.field_names:
        assert ast.literal_eval(sent[name]) == [product.rows[name][5]]


def test_scripts_import_names_that_exist(product: Written) -> None:
    """Each name that train.py, ask.py and model.py import is in its module."""
    spec = load_spec(product.folder / "shop_features" / "1" / "features.yaml")
    wire = {"inputs": wire_inputs(spec), "fields": wire_fields(spec, product.rows)}
    texts = [ask_text(product.rows, row=5, product="shop", **wire)]
    texts += [path.read_text() for path in sorted(product.folder.rglob("*.py"))]
    assert len(texts) == 4
    for tree in map(ast.parse, texts):
        for one in ast.walk(tree):
            if isinstance(one, ast.ImportFrom) and one.module is not None:
                module = importlib.import_module(one.module)
                assert [
                    name.name for name in one.names if not hasattr(module, name.name)
                ] == []


def test_lines_have_at_most_88_characters(product: Written) -> None:
    """Except in features.yaml, where each feature is one line."""
    for path in product.folder.rglob("*"):
        if path.is_file() and path.name != "features.yaml":
            lines = path.read_text().splitlines()
            long = [one for one in lines if len(one) > 88 and "TABLE" not in one]
            assert not long, path


def test_vectors_have_the_numbers_and_words_of_the_table(tmp_path: Path) -> None:
    """A missing number is NaN; a word is its position in the alphabet."""
    product = written(tmp_path, windows=False)
    spec = load_spec(product.folder / "shop_features" / "1" / "features.yaml")
    assert spec.feature_names == ("debt_ratio", "word", "paid")
    words = sorted(ODD_WORDS)
    table = product.plan.frame
    wanted = np.array(
        [
            [math.nan if one is None else one for one in table["debt ratio"]],
            [words.index(one) for one in table["word"]],
            table["paid"],
        ],
        np.float32,
    ).T
    np.testing.assert_array_equal(product.features, wanted)


def test_unreadable_window_has_the_values_of_an_unknown_id(tmp_path: Path) -> None:
    """Count and sum are 0, the last event is 30 days ago, the mean is the usual one."""
    product = written(tmp_path, windows=True)
    path = product.folder / "shop_features" / "1" / "features.yaml"
    spec = load_spec(path)
    defaults = {one.name: one.default for one in spec.features}
    comments = {
        line.split("name: ")[1].split(",")[0]: line.partition("  # default: ")[2]
        for line in path.read_text().splitlines()
        if "window:" in line
    }
    frame = pd.DataFrame(product.plan.frame.sort("when").to_dict(as_series=False))
    train = frame.index < 0.8 * ROWS  # the last fifth is held out
    complete = frame["when"] >= frame["when"].min() + 30 * 86_400
    assert (train & complete).sum() >= 0.5 * train.sum()
    for days in (1, 7, 30):
        means = [
            frame["paid"][
                (frame["who"] == row.who)
                & (frame["when"] <= row.when)
                & (frame["when"] > row.when - days * 86_400)
            ].mean()
            for row in frame.itertuples()
        ]
        usual = np.array(means)[train & complete].mean()
        assert defaults[f"who_count_{days}d"] == 0
        assert defaults[f"who_sum_{days}d"] == 0
        assert defaults[f"who_mean_{days}d"] == pytest.approx(usual, rel=5e-6)
        assert comments[f"who_count_{days}d"] == "an id without history"
        used = (train & complete).sum()
        assert comments[f"who_mean_{days}d"] == f"the mean of {used} training rows"
    assert defaults["who_since_last"] == 30 * 24 * 60 * 60
    assert comments["who_since_last"] == "30d, the longest window"


def test_field_missing_in_a_row_is_missing_in_its_history(
    tmp_path: Path,
) -> None:
    """As in a request with NaN."""
    from tollgate.history import history_of

    product = written(tmp_path, windows=False)
    spec = load_spec(product.folder / "shop_features" / "1" / "features.yaml")
    history = history_of(product.rows, spec=spec, source="rows")
    assert (history.fields["debt_ratio"] == MISSING).sum() == len(range(0, ROWS, 9))


@pytest.mark.parametrize(
    "text", [*ODD_WORDS, "plain", "a.b-c", "Yes", "ÿ\x7f", "\U0001f600"]
)
def test_yaml_text_is_read_back(text: str) -> None:
    """A text that YAML would read as another type is quoted."""
    assert yaml.safe_load(f"[{yaml_text(text)}]") == [text]


def test_long_yaml_list_is_wrapped_and_read_back() -> None:
    """No line has more than 88 characters."""
    words = [f"word number {at}" for at in range(60)]
    text = yaml_list(words, indent=6)
    assert yaml.safe_load(f"a:\n      {text}")["a"] == words
    assert max(map(len, text.splitlines()[1:])) <= 88


@pytest.mark.parametrize(
    ("low", "high", "decimals", "wanted"),
    [
        (18, 95, 0, (0, 1000)),
        (0, 1, 0, (0, 10)),
        (-8019, 102127, 0, (-10_000_000, 10_000_000)),
        (-5, -1, 0, (-100, 0)),
        (0, 0.001, 3, (0, 0.01)),
        (1, 9e11, 0, (0, 1e12)),
        (1e-7, 2e-7, None, (0, 1e-5)),
        (-0.3, 52.123456, None, (-1000, 1000)),
    ],
)
def test_range_is_a_power_of_ten_beyond_the_values(
    low: float, high: float, decimals: int | None, wanted: tuple[float, float]
) -> None:
    """Numbers below 0 are out of range if no value is."""
    assert bounds(low, high, decimals=decimals) == pytest.approx(wanted)


def test_yaml_numbers_are_read_back() -> None:
    """Whole numbers have no point; very small ones have an exponent."""
    assert [yaml_number(one) for one in (3.0, 0.25, 1e12, 1e-4, -0.5)] == [
        "3",
        "0.25",
        "1000000000000",
        "0.0001",
        "-0.5",
    ]
    for one in (1e-12, -2.5e-11, 52.12345678901234, 1 / 3):
        assert yaml.safe_load(yaml_number(one)) == one
