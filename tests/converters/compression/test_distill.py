"""A student answers nearly as its teacher, and converts like any other model."""

import msgspec
import numpy as np
import pytest
from xgboost import XGBClassifier

from converters.compression import distill as module
from converters.compression.compression_cost import Judge
from converters.compression.distill import Student, distill, with_copies
from converters.compression.quantize import quantize
from converters.parity.runner import onnx_runner
from converters.sources.worker import model_of
from tests.support.converters.parity import compare
from tollgate.errors import InputError


@pytest.fixture(scope="module")
def data():
    """Rows with gaps, labels of two classes, and of three."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(3000, 4)).astype(np.float32)
    margin = rows[:, 0] * 2 + np.abs(rows[:, 1]) + random.normal(size=len(rows)) / 2
    label = (margin > 1).astype(int)
    rows[random.random(rows.shape) < 0.05] = np.nan
    return rows, label, label + (margin > 3)


@pytest.fixture(scope="module")
def teacher(data):
    """A boosted model of 30 trees."""
    model = XGBClassifier(n_estimators=30, max_depth=3, n_jobs=1)
    return model_of(model.fit(data[0], data[1]))


@pytest.fixture(scope="module")
def taught(data, teacher):
    """Its student, with fewer rows to learn on than the command takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS", 12_000)
        judge = Judge(rows=data[0], label=data[1], thresholds=(0.5,))
        return distill(teacher, judge=judge, hidden=(32, 16))


def test_the_student_answers_nearly_as_its_teacher(data, teacher, taught):
    """On rows it never saw: few decisions differ, and the AUC is near."""
    held = data[0][::5]
    np.testing.assert_array_equal(taught.judge.rows, held)
    first, second = teacher.predict(held)[:, 1], taught.model.predict(held)[:, 1]
    assert ((first >= 0.5) != (second >= 0.5)).mean() < 0.06
    assert np.corrcoef(first, second)[0, 1] > 0.97
    assert taught.trade.rows == len(held)
    assert abs(taught.trade.before.auc - taught.trade.after.auc) < 0.02
    assert taught.trade.flips == pytest.approx(
        ((first >= 0.5) != (second >= 0.5)).sum(), abs=1
    )


def test_the_student_converts_with_parity(data, taught):
    """Gaps included: the graph puts the median in their place, as scikit-learn does."""
    student = taught.model
    report = compare(
        student.predict,
        onnx_runner(student.convert()),
        probes=student.probes(data[0][::5]),
        thresholds=(0.5,),
    )
    assert report.passed
    gaps = np.isnan(data[0]).any(axis=1)
    found = onnx_runner(student.convert())(data[0][gaps])
    assert np.isfinite(found).all()


def test_the_record_names_the_teacher(taught):
    """Framework, objective and trees of it; its classes; how the student was made."""
    facts = taught.model.facts
    assert facts.framework == "scikit-learn"
    assert facts.objective.endswith("distilled from xgboost binary:logistic, 30 trees")
    assert (facts.classes, facts.columns, facts.trees) == ((0, 1), 4, 0)
    assert facts.parameters["hidden"] == "32x16"
    assert facts.parameters["seed"] == 0


def test_what_is_read_with_care_is_no_better_as_a_teacher(taught):
    """A file of another release may have been another model there: still said."""
    facts = msgspec.structs.replace(taught.model.facts, written_by="0.24.2")
    student = Student(taught.model._estimator, teacher=facts, seed=0)
    assert student.facts.written_by == "0.24.2"


def test_a_student_is_quantised(data, taught):
    """Judged on the held-out rows, calibrated on those it was fitted to."""
    assert len(taught.rows) == len(data[0]) - len(taught.judge.rows)
    found = quantize(
        taught.model.convert(), "static", judge=taught.judge, samples=taught.rows
    )
    assert found.trade.rows == len(taught.judge.rows)
    assert found.trade.before.auc == taught.trade.after.auc
    assert 0 < found.trade.max_delta < 0.1


def test_three_classes_become_a_softmax(data, monkeypatch):
    """Fitted to centred logarithms; the classes stay in order."""
    monkeypatch.setattr(module, "ROWS", 6000)
    rows, _, label = data
    model = XGBClassifier(n_estimators=10, max_depth=3, n_jobs=1).fit(rows, label)
    teacher = model_of(model)
    judge = Judge(rows=rows, label=label, thresholds=(0.5,))
    student = distill(teacher, judge=judge, hidden=(32,)).model
    found, wanted = student.predict(rows), teacher.predict(rows)
    assert found.shape == wanted.shape
    assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() > 0.9
    converted = onnx_runner(student.convert())(rows)
    np.testing.assert_allclose(converted, found, atol=1e-5)


def test_copies_stay_near_the_sample(data, monkeypatch):
    """Every value comes from the same column; about a fifth of a copy's are others."""
    monkeypatch.setattr(module, "ROWS", 20_000)
    rows = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    found = with_copies(rows, seed=0)
    np.testing.assert_array_equal(found[:1000], rows)
    np.testing.assert_array_equal(found, with_copies(rows, seed=0))
    copies = found[1000:].astype(int)
    assert (copies % 4 == np.arange(4)).all()
    origin = copies // 4
    usual = np.median(origin, axis=1, keepdims=True)  # of 4 values most are its own
    assert 0.15 < (origin != usual).mean() < 0.3


def test_a_student_of_few_rows_is_refused(data, teacher):
    """One line that names the argument and how many it takes."""
    judge = Judge(rows=data[0][:150], label=None, thresholds=(0.5,))
    with pytest.raises(InputError, match=r"^sample: holds 150 rows"):
        distill(teacher, judge=judge)
