"""From a trained model to the release: all or nothing, and what was trained."""

import shutil

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from converters.conversion import convert_model
from converters.parity.runner import onnx_runner
from converters.purpose import purpose_of
from converters.sample import Sample
from converters.sources.worker import model_of
from converters.training import PARAMETERS, train_xgboost
from tests.support.converters.artifact_record import read_record
from tollgate.errors import ConversionError, InputError, RepositoryError
from tollgate.features.spec.feature_spec import load_spec
from tollgate.pipeline import publish_and_release
from tollgate.repository.releases.release_file import read_release, verify_release
from tollgate.repository.releases.rendering import merged_configs
from tollgate.repository.releases.served_versions import read_served, require_spec


@pytest.fixture(scope="module")
def model(rows):
    """Train the pinned classifier on few rows."""
    return train_xgboost(*rows, seed=0)


def converted(model, rows, repository):
    """Convert a model in memory for the fraud product."""
    features, label = rows
    purpose = purpose_of(repository, "fraud")
    return convert_model(
        model_of(model),
        origin="the model",
        purpose=purpose,
        sample=Sample(
            rows=features,
            names=purpose.names,
            label=tuple(label.tolist()),
            origin="training",
        ),
    )


def released(model, rows, repository):
    """Convert, publish and release a model."""
    return publish_and_release(
        converted(model, rows, repository),
        repository=repository,
        product="fraud",
        reason="first model",
    )


def files(repository):
    """List everything in a repository."""
    return sorted(path.relative_to(repository) for path in repository.rglob("*"))


def test_a_published_model_is_the_release(model, rows, repository, spec):
    """Version 1 of the model step, named and hashed by release.json."""
    release = released(model, rows, repository)
    assert release.versions == {
        "fraud_features": 1,
        "fraud_model": 1,
        "fraud_decision": 1,
    }
    assert release.spec_hash == f"{spec.spec_hash:016x}"
    assert (release.actor, release.reason) == ("tollgate", "first model")
    assert read_release(repository, product="fraud") == release
    verify_release(repository, release)
    assert [load.name for load in merged_configs(repository, product="fraud")] == [
        "fraud_features",
        "fraud_model",
        "fraud_decision",
        "fraud",
    ]


def test_the_published_file_answers_as_the_trained_model(model, rows, repository, spec):
    """Every training row, within float32 rounding."""
    released(model, rows, repository)
    published = (repository / "fraud_model" / "1" / "model.onnx").read_bytes()
    found = onnx_runner(published)(rows[0])
    np.testing.assert_allclose(found, model.predict_proba(rows[0]), atol=1e-6)


def test_the_record_says_where_the_model_comes_from(model, rows, repository, spec):
    """Framework, parameters, features, spec, proof and training rows."""
    features, label = rows
    released(model, rows, repository)
    record = read_record(repository / "fraud_model" / "1")
    assert record.features == spec.feature_names
    assert record.spec_hash == f"{spec.spec_hash:016x}"
    assert (record.source.framework, record.source.classes) == ("xgboost", (0, 1))
    assert PARAMETERS.items() <= record.source.parameters.items()
    assert record.source.parameters["random_state"] == 0
    assert record.source.trees == 100
    (proof,) = record.parity
    assert proof.passed
    assert proof.thresholds == (0.25, 0.3, 0.35, 0.7, 0.8)  # policy.yaml
    assert (record.training.rows, record.training.frauds) == (3000, int(label.sum()))
    amount = record.training.features["amount"]
    assert amount.quantiles[0] == float(features[:, 0].min())
    score = model.predict_proba(features)[:, 1]
    assert record.training.score.quantiles[-1] == pytest.approx(score.max(), abs=1e-6)


def test_two_texts_do_not_tell_which_of_them_is_acted_on(rows, repository):
    """Sorted, 'genuine' comes behind 'fraud': its probability would be the score."""
    features, label = rows

    def trained(*names):
        model = DecisionTreeClassifier(max_depth=3, random_state=0)
        return model.fit(features, np.asarray(names)[label])

    def converted_to(repository, model):
        return convert_model(
            model_of(model),
            origin="the model",
            purpose=purpose_of(repository, "fraud"),
            sample=None,
        )

    with pytest.raises(InputError, match="the probability of 'genuine'; train it on"):
        converted_to(repository, trained("genuine", "fraud"))
    assert converted_to(repository, trained("no", "yes")).proven.passed
    assert converted_to(repository, trained(False, True)).proven.passed


def test_the_next_model_keeps_the_one_before(model, rows, repository, spec):
    """Versions are never overwritten; the release before stays for a roll-back."""
    first = released(model, rows, repository)
    second = released(train_xgboost(*rows, seed=1), rows, repository)
    assert second.versions["fraud_model"] == 2
    assert second.previous == first.versions
    verify_release(repository, second)


def test_another_feature_spec_than_the_served_one_is_refused(repository, tmp_path):
    """Features, model and policy of different definitions can never mix."""
    served = repository / "fraud_features" / "1" / "features.yaml"
    other = tmp_path / "features.yaml"
    other.write_text(served.read_text().replace("window: 30d", "window: 31d", 1))
    with pytest.raises(RepositoryError) as caught:
        require_spec(read_served(repository, "fraud"), load_spec(other))
    assert str(caught.value).startswith(f"{served}: spec_hash: is served with hash ")


def test_the_released_spec_counts_not_the_newest(model, rows, repository, spec):
    """A features version that is there but not released changes nothing."""
    released(model, rows, repository)
    step = repository / "fraud_features"
    shutil.copytree(step / "1", step / "2")
    draft = step / "2" / "features.yaml"
    draft.write_text(draft.read_text().replace("window: 30d", "window: 31d", 1))
    assert released(model, rows, repository).versions["fraud_features"] == 1
    with pytest.raises(RepositoryError, match=r"fraud_features/1/features\.yaml"):
        require_spec(read_served(repository, "fraud"), load_spec(draft))


def test_a_model_that_cannot_be_converted_leaves_the_repository_alone(
    rows, repository, spec
):
    """The refusal is the converter's; nothing is half-written."""
    from xgboost import XGBClassifier

    linear = XGBClassifier(n_jobs=1, booster="gblinear", n_estimators=2).fit(*rows)
    before = files(repository)
    with pytest.raises(ConversionError, match="booster is 'gblinear'"):
        released(linear, rows, repository)
    assert files(repository) == before


def test_a_model_of_other_width_is_refused(rows, repository, spec):
    """14 features do not fit a spec of 15."""
    features, label = rows
    narrow = np.ascontiguousarray(features[:, :14])
    model = train_xgboost(narrow, label, seed=0)
    before = files(repository)
    with pytest.raises(InputError, match=r"^the model: has 14 features, the product"):
        released(model, rows, repository)
    assert files(repository) == before


def test_columns_in_another_order_are_refused(rows, repository, spec):
    """Names in the model must be the spec's, in its order."""
    import pandas as pd
    from xgboost import XGBClassifier

    features, label = rows
    names = list(spec.feature_names)
    names[0], names[1] = names[1], names[0]
    model = XGBClassifier(n_jobs=1, n_estimators=2, base_score=0.5)
    model.fit(pd.DataFrame(features, columns=names), label)
    with pytest.raises(InputError, match="feature 0: was trained with 'during_we"):
        released(model, rows, repository)


def test_a_step_configured_for_another_model_is_refused(model, rows, repository, spec):
    """The config.pbtxt is the operators' own; it is not bent to a model."""
    config = repository / "fraud_model" / "config.pbtxt"
    text = config.read_text().replace("dims: [ 2 ]", "dims: [ 3 ]")
    config.write_text(text)
    with pytest.raises(RepositoryError, match=r"^model: output probabilities: "):
        released(model, rows, repository)
    assert not (repository / "fraud_model" / "1").exists()


def test_a_repository_without_features_or_policy_is_refused(
    model, rows, repository, spec
):
    """There must be something that the model can fit."""
    shutil.rmtree(repository / "fraud_decision" / "1")
    with pytest.raises(RepositoryError, match=r"no version has a policy\.yaml"):
        released(model, rows, repository)
    shutil.rmtree(repository / "fraud_features" / "1")
    with pytest.raises(RepositoryError, match=r"no version has a features\.yaml"):
        released(model, rows, repository)


@pytest.mark.parametrize(
    ("features", "label", "words"),
    [
        (
            np.zeros((4, 15)),
            [0, 1, 0, 1],
            "training rows: features: are float64 [4, 15]",
        ),
        (np.zeros(4, np.float32), [0, 1, 0, 1], "training rows: features: are float32"),
        (
            np.zeros((4, 15), np.float32),
            [0, 1],
            "training rows: label: shape [2] for 4",
        ),
        (
            np.zeros((4, 15), np.float32),
            [0] * 4,
            "training rows: label: must hold both",
        ),
        (
            np.zeros((4, 15), np.float32),
            [0, 1, 2, 1],
            "training rows: label: must hold",
        ),
    ],
)
def test_training_rows_of_another_kind_are_refused(features, label, words):
    """float64 rows would be trained on other numbers than are served."""
    with pytest.raises(InputError) as caught:
        train_xgboost(features, label, seed=0)
    assert str(caught.value).startswith(words)


def test_the_same_rows_and_seed_give_the_same_model(rows, repository):
    """Training and conversion can be repeated byte for byte."""
    features, label = rows
    once, again = (
        converted(train_xgboost(features, label, seed=3), rows, repository)
        for _ in range(2)
    )
    assert once.proven.model == again.proven.model
