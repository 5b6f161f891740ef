"""
Two credit tables of others, served: every score is scikit-learn's own.

The served pipeline is compared with one that knows nothing of Tollgate: it reads the
table itself, texts as texts. `pytest -s` prints the figures.
"""

from __future__ import annotations

import time

import msgspec
import numpy as np
import pandas
import polars as pl
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from threadpoolctl import threadpool_limits

from converters.baseline import baseline, cross_validated_auc, train_baseline
from converters.conversion import convert_model
from converters.purpose import purpose_of
from converters.sample import Sample
from converters.sources.worker import model_of
from tollgate.explanation import EXPLAIN_FILE, Explainer, read_explanation
from tollgate.features.spec.feature_spec import wire_inputs
from tollgate.history.request_columns import field_columns, wire_fields
from tollgate.pipeline import publish_and_release
from tollgate.product.files import build_features, write_texts
from tollgate.product.plan import ProductChoices, make_plan
from tollgate.product.thresholds import Rates, choose_thresholds
from tollgate.server.serving.embedded import serve
from tollgate_client import Client, join

pytestmark = pytest.mark.slow

SEED = 0
TABLES = {
    "card_default": {
        "label": "default.payment.next.month",
        "positive": "1",
        "sensitive": ("SEX", "AGE", "MARRIAGE"),
        "drop": ("ID",),
    },
    "german_credit": {
        "label": "class",
        "positive": "2",
        "sensitive": ("personal_status", "age", "foreign_worker"),
    },
}
ROWS = {"card_default": 30_000, "german_credit": 1_000}


class Served(msgspec.Struct):
    """A table's product: what it is made of, and what the server answered."""

    name: str
    spec: object
    frame: pl.DataFrame
    features: object
    label: object
    model: object
    answers: object
    thresholds: tuple[float, ...]
    explanation: object
    seconds: float


@pytest.fixture(scope="module", params=list(TABLES))
def served(request, shared_data, tmp_path_factory):
    """Train on all rows, publish, serve, and have every row decided over gRPC."""
    name = request.param
    table = shared_data / "credit" / f"{name}.parquet"
    folder = tmp_path_factory.mktemp(name)
    repository = folder / "model_repository"
    plan = make_plan(ProductChoices(product=name, table=table, **TABLES[name]))
    missing = {one.name: float("nan") for one in plan.fields}
    spec, rows, features, _ = build_features(
        plan, repository, fields=plan.fields, missing=missing
    )
    label = rows.history.label
    model = train_baseline(features, label, spec=spec, seed=SEED)
    chosen = choose_thresholds(
        model.predict_proba(features)[:, 1],
        label,
        goal=Rates(review=0.1, decline=0.1),
        origin="the rows that it was trained on",
    )
    write_texts(
        plan,
        repository,
        spec=spec,
        thresholds=chosen,
        kind="boosting",
        seen=True,
        wide=False,
    )
    purpose = purpose_of(repository, name)
    converted = convert_model(
        model_of(model),
        origin="the pipeline",
        purpose=purpose,
        sample=Sample(
            rows=features,
            names=spec.feature_names,
            label=tuple(label.tolist()),
            segments=rows.segments,
            sensitive=tuple(rows.segments),
            origin="training",
        ),
    )
    release = publish_and_release(
        converted, repository=repository, product=name, reason="the whole table"
    )
    version = release.versions[f"{name}_model"]
    path = repository / f"{name}_model" / str(version) / EXPLAIN_FILE
    started = time.monotonic()
    with serve(repository, products=(name,), state=folder / "state") as server:
        answers = decided(rows.frame, spec, server.grpc_url)
    return Served(
        name=name,
        spec=spec,
        frame=pl.read_parquet(table),
        features=features,
        label=label,
        model=model,
        answers=answers,
        thresholds=(*purpose.thresholds, 0.5),
        explanation=read_explanation(path),
        seconds=time.monotonic() - started,
    )


def decided(frame, spec, url):
    """Send all rows, 32 a request."""
    fields = wire_fields(spec, frame)
    columns = dict(field_columns(frame, fields, errors=[""] * len(frame)))
    columns["transaction_id"] = [f"r{row}" for row in range(len(frame))]
    columns["event_time"] = [time.time_ns() // 1000] * len(frame)
    with Client(
        url, product=spec.product, inputs=wire_inputs(spec), fields=fields, timeout_s=30
    ) as client:
        return join(list(client.decide_many(columns, dry_run=True)))


def script(spec):
    """Write the pipeline down as a person would, over the table as it is."""
    words = [one for one in spec.fields if one.type == "category"]
    numbers = [source(spec, one.name) for one in spec.fields if one.type == "number"]
    encoder = OneHotEncoder(
        categories=[list(one.vocabulary) for one in words],
        handle_unknown="ignore",
        sparse_output=False,
    )
    columns = [("numbers", SimpleImputer(strategy="median"), numbers)]
    if words:
        columns.append(("words", encoder, [source(spec, one.name) for one in words]))
    return make_pipeline(
        ColumnTransformer(columns),
        HistGradientBoostingClassifier(
            max_iter=150,
            learning_rate=0.06,
            max_depth=4,
            early_stopping=False,
            random_state=SEED,
        ),
    )


def source(spec, name):
    """Name the table's column of a field."""
    return spec.aliases.get(name, (name,))[0]


def labels(served):
    """Read the outcomes from the table itself."""
    asked = TABLES[served.name]
    column = served.frame[asked["label"]].cast(pl.String)
    return (column == asked["positive"]).to_numpy().astype(int)


def test_served_scores_are_the_pipelines_on_every_row(served):
    """At most 1e-5 apart, no decision flips, no row is refused or degraded."""
    wanted = served.model.predict_proba(served.features)[:, 1]
    found = served.answers.score.astype(np.float64)
    assert len(found) == ROWS[served.name]
    assert set(served.answers.error) == {""}
    apart = float(np.abs(found - wanted).max())
    flips = sum(
        int(((found >= cut) != (wanted.astype(np.float32) >= cut)).sum())
        for cut in served.thresholds
    )
    print(
        f"\n{served.name}: {len(found):,} rows, largest difference {apart:.2g}, "
        f"{flips} flips, served in {served.seconds:.1f} s with the server's start"
    )
    assert apart <= 1e-5
    assert flips == 0


def test_a_script_over_the_table_itself_scores_and_ranks_alike(served):
    """The same probabilities as served, and the same AUC in the same five folds."""
    table = pandas.DataFrame(served.frame.to_dict(as_series=False))
    label = labels(served)
    with threadpool_limits(1):
        alone = script(served.spec).fit(table, label).predict_proba(table)[:, 1]
        aucs = []
        folds = StratifiedKFold(5, shuffle=True, random_state=SEED)
        for train, test in folds.split(table, label):
            model = script(served.spec).fit(table.iloc[train], label[train])
            score = model.predict_proba(table.iloc[test])[:, 1]
            aucs.append(roc_auc_score(label[test], score))
    assert np.abs(alone - served.answers.score).max() <= 1e-5
    found = cross_validated_auc(
        served.features,
        served.label,
        model=baseline(served.spec, seed=SEED),
        seed=SEED,
    )
    print(
        f"\n{served.name}: AUC in five folds {found.mean:.6f} ± {found.spread:.6f}, "
        f"the script's {np.mean(aucs):.6f}"
    )
    np.testing.assert_allclose(found.folds, aucs, atol=1e-12)


def test_what_is_sensitive_is_no_input_and_every_score_is_explained(served):
    """Contributions add up to the served score of each row."""
    asked = TABLES[served.name]
    known = {source(served.spec, one) for one in served.spec.field_names}
    assert not known & {*asked["sensitive"], asked["label"], "ID"}
    explainer = Explainer(served.explanation)
    at = np.linspace(0, len(served.label) - 1, 200).astype(int)
    rows = served.features[at]
    margin = explainer.expected + explainer.contributions(rows).sum(axis=2)
    np.testing.assert_allclose(
        1 / (1 + np.exp(-margin[:, 0])), served.answers.score[at], atol=1e-5
    )
