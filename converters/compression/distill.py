"""
Train a small network to predict as a trained model does (distillation).

The student is an ordinary scikit-learn pipeline: the median replaces missing values,
the inputs are standardised, and a network has a few units. It is fitted to the
teacher's log-odds, not to labels, so that it learns how certain the teacher is. It
learns on rows of the sample and on copies near them: each copy of a row takes every
value, with a chance of one in five, from another row of the sample, and the teacher
predicts the copy too. Every fifth row of the sample is held out, to evaluate the
student on rows that it never saw.
"""

from __future__ import annotations

import warnings

import msgspec
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from converters.compression.compression_cost import Judge, weigh
from converters.model import F32, F64, Facts, TrainedModel
from converters.sources.sklearn import SklearnModel
from tollgate.errors import ArgumentError, ConversionError
from tollgate.repository.models.artifact_file import Trade

HIDDEN = (64, 32)
SEED = 0  # seed of the copies and of the network
HELD_BACK = 5  # hold out one row in so many
ROWS = 200_000  # training rows: the sample and its copies
SWAPPED = 0.2  # share of a copy's values that come from another row
LEAST_ROWS = 200
_SUREST = 1e-4  # clip probabilities to this distance from 0 and 1
_EPOCHS = 60


class Distilled(msgspec.Struct, frozen=True, eq=False):
    """
    A student network, and its cost compared with its teacher.

    Attributes:
        trade: Loss and gain, measured on the held-out rows.
        judge: The held-out rows.
        rows: Sample rows that it was fitted to; float32 [N, F].
    """

    model: TrainedModel
    trade: Trade
    judge: Judge
    rows: F32


class Student(SklearnModel):
    """
    A pipeline that predicts as its teacher does.

    Args:
        teacher: Facts about the model it learned from.
        seed: Seed of the copies and of the network.
    """

    def __init__(self, pipeline: Pipeline, *, teacher: Facts, seed: int) -> None:
        super().__init__(pipeline)
        self._teacher = teacher
        self._seed = seed

    @property
    def facts(self) -> Facts:
        """Return its facts; names and classes are its teacher's."""
        own = super().facts
        teacher = self._teacher
        trees = f", {teacher.trees} trees" if teacher.trees else ""
        network = self._estimator.steps[-1][1]
        return msgspec.structs.replace(
            own,
            objective=f"{own.objective}, distilled from {teacher.framework} "
            f"{teacher.objective}{trees}",
            classes=teacher.classes,
            names=teacher.names,
            written_by=teacher.written_by,
            parameters={
                "hidden": "x".join(map(str, network.hidden_layer_sizes)),
                "rows": ROWS,
                "swapped": SWAPPED,
                "seed": self._seed,
            },
        )


def distill(
    teacher: TrainedModel,
    *,
    judge: Judge,
    hidden: tuple[int, ...] = HIDDEN,
) -> Distilled:
    """
    Fit a student and measure it on the held-out rows.

    Args:
        teacher: Model to learn from.
        judge: The sample, of 200 rows or more; labels are used to evaluate, not to
            learn.
        hidden: Number of units of each hidden layer.

    Raises:
        InputError: The sample has too few rows.
        ConversionError: The teacher refuses too many of them.
    """
    if len(judge.rows) < LEAST_ROWS:
        raise ArgumentError(
            "sample",
            f"holds {len(judge.rows)} rows; a student needs {LEAST_ROWS} or more",
        )
    held_out = np.arange(len(judge.rows)) % HELD_BACK == 0
    rows = judge.rows[~held_out]
    evaluation = Judge(
        rows=judge.rows[held_out],
        label=None if judge.label is None else np.asarray(judge.label)[held_out],
        thresholds=judge.thresholds,
    )
    pipeline = fitted(teacher, rows, hidden=hidden, seed=SEED)
    student = Student(pipeline, teacher=teacher.facts, seed=SEED)
    layers = "x".join(str(units) for units in hidden)
    trade = weigh(
        teacher.convert(),
        student.convert(),
        kind="distill",
        detail=f"a network of {layers} units for {teacher.facts.framework}",
        judge=evaluation,
    )
    return Distilled(model=student, trade=trade, judge=evaluation, rows=rows)


def fitted(
    teacher: TrainedModel, rows: F32, *, hidden: tuple[int, ...], seed: int
) -> Pipeline:
    """Fit the pipeline to the teacher's log-odds on rows and copies near them."""
    inputs = with_copies(rows, seed=seed)
    answers = teacher.predict(inputs)
    usable = np.isfinite(answers).all(axis=1) & ~np.isinf(inputs).any(axis=1)
    if usable.sum() < LEAST_ROWS:
        raise ConversionError(
            f"the teacher answers {usable.sum()} of {len(inputs)} rows to learn on"
        )
    target = _logits(answers[usable])
    preprocessing = [
        ("impute", SimpleImputer(strategy="median", keep_empty_features=True)),
        ("scale", StandardScaler()),
    ]
    scaled = Pipeline(preprocessing).fit_transform(inputs[usable])
    middle, spread = target.mean(axis=0), target.std(axis=0) + 1e-6
    network = MLPRegressor(
        hidden_layer_sizes=hidden,
        batch_size=512,
        early_stopping=True,
        max_iter=_EPOCHS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # measured later
        network.fit(scaled, ((target - middle) / spread).astype(scaled.dtype).squeeze())
    # Undo the standardisation in the last layer, so that it returns log-odds.
    network.coefs_[-1] = (network.coefs_[-1] * spread).astype(scaled.dtype)
    network.intercepts_[-1] = (network.intercepts_[-1] * spread + middle).astype(
        scaled.dtype
    )
    return Pipeline(
        [*preprocessing, ("network", _classifier(network, answers.shape[1]))]
    )


def with_copies(rows: F32, *, seed: int) -> F32:
    """
    Return rows and, up to ROWS in all, copies with values of other rows.

    Returns:
        float32 [M, F]; the rows themselves come first.
    """
    random = np.random.default_rng(seed)
    count = max(0, ROWS - len(rows))
    copies = rows[random.integers(0, len(rows), count)]
    other = rows[random.integers(0, len(rows), copies.shape), np.arange(rows.shape[1])]
    swapped = random.random(copies.shape) < SWAPPED
    found: F32 = np.concatenate([rows, np.where(swapped, other, copies)])
    return found


def _logits(answers: F64) -> F64:
    """Return log-odds of two classes [N, 1], centred logarithms of more [N, K]."""
    sure = np.clip(answers, _SUREST, 1 - _SUREST)
    if answers.shape[1] == 2:
        found: F64 = np.log(sure[:, 1:] / (1 - sure[:, 1:]))
        return found
    power = np.log(sure)
    centred: F64 = power - power.mean(axis=1, keepdims=True)
    return centred


def _classifier(network: MLPRegressor, classes: int) -> MLPClassifier:
    """Return the same layers as a classifier: their sums go through a sigmoid."""
    classifier = MLPClassifier(network.hidden_layer_sizes)
    classifier.coefs_, classifier.intercepts_ = network.coefs_, network.intercepts_
    classifier.n_layers_, classifier.n_features_in_ = (
        network.n_layers_,
        network.n_features_in_,
    )
    classifier.n_outputs_ = 1 if classes == 2 else classes
    classifier.out_activation_ = "logistic" if classes == 2 else "softmax"
    classifier.classes_ = np.arange(classes)
    return classifier
