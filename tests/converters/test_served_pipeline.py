"""A scikit-learn pipeline, from fit to a decision: served is what it answers itself."""

import joblib
import numpy as np
import polars as pl
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from converters.conversion import Conversion, convert_file
from converters.folder import write_converted
from converters.purpose import purpose_of
from tollgate.features.offline import build
from tollgate.history import history_of
from tollgate.pipeline import decide_history, wait_for_store
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import write_release
from tollgate.repository.releases.served_versions import read_served
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.publishing import publish
from tollgate.server.serving.embedded import serve
from tollgate.simulate import simulate
from tollgate_client import join

CODED = ("during_weekend", "during_night")
DECIDED = 1000


@pytest.fixture(scope="module")
def history():
    """Return a simulated history that has frauds."""
    return simulate(customers=200, terminals=100, days=30, seed=0)


def fitted(features, label, names):
    """Fit scaler, encoder and regression on numbers and numeric codes."""
    coded = [names.index(name) for name in CODED]
    numbers = [at for at in range(len(names)) if at not in coded]
    prepared = ColumnTransformer(
        [
            ("numbers", StandardScaler(), numbers),
            ("codes", OneHotEncoder(handle_unknown="ignore"), coded),
        ]
    )
    # Balanced, so that the few frauds move scores across the policy's thresholds.
    judge = LogisticRegression(class_weight="balanced")
    model = Pipeline([("prepared", prepared), ("model", judge)])
    return model.fit(features, label)


def released(repository, folder, spec):
    """Publish a converted model and release it."""
    published = publish(folder, repository=repository, product="fraud")
    versions = read_served(repository, "fraud").versions
    release = compose_release(
        RepositorySnapshot(repository),
        product="fraud",
        versions={**versions, published.step: published.version},
        actor="test",
        reason="a pipeline",
        spec_hash=f"{spec.spec_hash:016x}",
    )
    write_release(repository, release)
    return release


@pytest.mark.slow
def test_a_pipeline_is_published_and_served_as_it_answers_itself(
    history, repository, spec, tmp_path
):
    """Scores within 1e-5 of predict_proba, and every decision the policy's."""
    purchases = history_of(history, spec=spec, source="simulated")
    features = build(spec, purchases).astype(np.float32)
    label = purchases.label
    first, later = np.split(np.arange(len(purchases)), [len(purchases) - DECIDED])
    model = fitted(features[first], label[first], spec.feature_names)
    joblib.dump(model, tmp_path / "model.joblib")
    table = dict(zip(spec.feature_names, features[first].T, strict=True))
    frame = pl.DataFrame({**table, "label": label[first]})
    frame.write_parquet(tmp_path / "rows.parquet")

    converted = convert_file(
        Conversion(
            source=tmp_path / "model.joblib",
            purpose=purpose_of(repository, "fraud"),
            sample=tmp_path / "rows.parquet",
            label="label",
            segments=CODED,
            trust_pickle=True,
        )
    )
    record = write_converted(converted, tmp_path / "out")
    assert {name: record.categories[name].known for name in CODED} == dict.fromkeys(
        CODED, (0.0, 1.0)
    )
    release = released(repository, tmp_path / "out", spec)

    wait_for_store(repository, product="fraud", deadline_ms=5_000)
    with serve(repository, state=tmp_path / "state") as server:
        assert server.serving["fraud"].release == release.name
        answered = list(
            decide_history(
                purchases,
                spec=spec,
                grpc_url=server.grpc_url,
                store_url=server.store_url,
                decide_from_us=int(purchases.event_time_us[later[0]]),
                batch_rows=32,
                in_flight=1,
            )
        )
    rows = np.concatenate([rows for rows, _ in answered])
    decided = join([decisions for _, decisions in answered])
    assert set(decided.release.tolist()) == {release.name}
    assert len(rows) >= DECIDED
    expected = model.predict_proba(features[rows])[:, 1]
    np.testing.assert_allclose(decided.score, expected, atol=1e-5, rtol=0)
    for cut in purpose_of(repository, "fraud").thresholds:
        above = expected.astype(np.float32) >= cut
        assert 0 < above.sum() < len(rows)
        assert np.array_equal(decided.score >= cut, above)
