"""A product without windows and without money, made from nothing: loans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from converters.conversion import convert_model
from converters.folder import write_converted
from converters.purpose import purpose_of
from converters.sample import Sample
from converters.sources.worker import model_of
from tests.support.products.plain_product import release_first, write_product
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import history_of

NAME = "loans"
HOUSING = ["own", "rent", "free"]
FIELDS = {"income": "FP64", "debt": "FP64", "years": "FP64", "housing": "BYTES"}
INPUTS = {"transaction_id": "BYTES", "event_time": "INT64"}
SPEC = """\
version: 1
product: loans
amount: false
fields:
  - {name: income, type: number, decimals: 2, range: [0, 10000000]}
  - {name: debt, type: number}
  - {name: years, type: number, decimals: 1, range: [0, 80]}
  - {name: housing, type: category, vocabulary: [own, rent, free]}
  - {name: desk, type: category, use: policy}
features:
  - {name: income, field: income, default: .nan}
  - {name: debt, field: debt, default: .nan}
  - {name: years, field: years, default: .nan, range: [0, 40]}
  - {name: housing, category: housing}
  - {name: burden, ratio: [debt, income], default: .nan}
"""
POLICY = """\
version: 1
product: loans
labels: [repaid, defaulted]
score: defaulted
thresholds: {review: 0.4, decline: 0.7}
fallback: {model_output: review}
degraded: {FIELD_MISSING: none, LOOKUPS_UNREAD: none}
lists:
  - {name: withdrawn, of: transaction_id, meaning: deny}
rules:
  - {name: withdrawn, owner: desk, when: {withdrawn: true}, at_least: decline,
     code: WITHDRAWN, stop: true}
  - {name: no_income, owner: desk, when: {income: {missing: true}}, at_least: review,
     code: NO_INCOME}
reasons:
  SCORE_REVIEW: The model is in doubt.
  SCORE_DECLINE: The model expects a loss.
  MODEL_UNAVAILABLE: The model gave no usable score.
  WITHDRAWN: The application was withdrawn.
  NO_INCOME: No income was stated.
"""


def table(rows: int, *, seed: int = 0) -> pl.DataFrame:
    """Draw applications; some lack a number, a word, or have one never seen."""
    chance = np.random.default_rng(seed)
    income = np.round(chance.gamma(2.0, 1500.0, rows), 2)
    debt = np.round(chance.gamma(1.0, 4000.0, rows))
    years = np.round(chance.random(rows) * 50, 1)
    words = np.array([*HOUSING, "boat", ""])[chance.integers(0, 5, rows)]
    risk = debt / (income + 500) - years / 20 + (words == "rent")
    label = (risk + chance.normal(0, 1, rows) > 1.5).astype(int)
    for column in (income, debt, years):
        column[chance.random(rows) < 0.1] = np.nan
    return pl.DataFrame(
        {
            "income": income,
            "debt": debt,
            "years": years,
            "housing": words.tolist(),
            "label": label,
        }
    )


def make_product(
    repository: Path, rows: pl.DataFrame, *, spec_text: str = SPEC, policy: str = POLICY
) -> FeatureSpec:
    """Write the product, with a model of these rows that imputes by itself."""
    spec = write_product(
        repository,
        spec_text=spec_text,
        policy_text=policy,
        store_deadline_ms=2_000,  # a busy machine must not turn into degraded answers
    )
    train(repository, rows, spec=spec)
    release_first(repository, spec)
    return spec


def train(repository: Path, rows: pl.DataFrame, *, spec: FeatureSpec) -> None:
    """Put a pipeline there that imputes what is missing, converted and proven."""
    history = history_of(rows, spec=spec, source="loans")
    features = build(spec, history).astype(np.float32)
    pipeline = make_pipeline(
        SimpleImputer(strategy="median"),
        StandardScaler(),
        LogisticRegression(max_iter=500),
    )
    pipeline.fit(features, history.label)
    converted = convert_model(
        model_of(pipeline),
        origin="a pipeline",
        purpose=purpose_of(repository, NAME),
        sample=Sample(
            rows=features,
            names=spec.feature_names,
            label=tuple(history.label.tolist()),
            origin="training",
        ),
    )
    write_converted(converted, repository / f"{NAME}_model" / "1")
