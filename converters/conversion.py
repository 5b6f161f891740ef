"""Convert a trained model into a proven one that fits its product."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from converters.calibration import MOST_ROWS, CalibratedDetector, fit_calibration
from converters.card.quality_record import Levels
from converters.compression.compress import (
    Shrinking,
    quantized,
    smaller_source,
    tensorized,
)
from converters.compression.compression_cost import Judge
from converters.converted import Converted
from converters.explain.explanation import explain
from converters.model import F64, Facts, TrainedModel
from converters.parity.proof import prove
from converters.parity.source_comparison import oracle_of
from converters.purpose import Purpose
from converters.sample import Sample, read_sample
from converters.sources.described import with_names, with_words
from converters.sources.files.formats import format_of
from converters.sources.opening import open_source
from converters.sources.ranker import Ranker
from tollgate.errors import (
    ArgumentError,
    ConversionError,
    InputError,
    RepositoryError,
)
from tollgate.explanation.explanation_file import unexplained
from tollgate.repository.models.artifact_file import Calibration, MadeFrom, source_file
from tollgate.repository.models.model_files import MODEL_FILE, onnx_findings

# Without a product, an outlier detector is judged at one false alarm in a hundred.
DETECTED = Levels(names=("below 0.99", "0.99 or above"), thresholds=(0.99,))
_ANSWERED = 1_000  # rows that a source predicts for a comparison
# Label texts with only one possible order.
_PLAIN = {("0", "1"), ("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t")}


class Conversion(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """
    Options of a conversion.

    Attributes:
        sample: File of rows to prove it on and to describe its training with.
        label: Column of the sample with each row's true outcome.
        segments: Columns of the sample whose values divide the quality report.
        sensitive: Columns like segments, for attributes that must not influence a
            decision; they are never features.
        targets: Other Triton releases to prove it for.
        trust_pickle: True to load a pickle, which runs the code in it.
        python: Python of the environment that trained it; None for our own.
        missing: Number that stands for a missing value, where the file does not say.
        expected: File with the author's predictions for the sample's rows; see
            `read_expected`.
        columns: Names of its features in the order of its training, if its file has
            none; empty for none.
        calibration: File of normal rows that turn an outlier detector's raw score into
            a probability; None for the sample, without the rows whose label is 1.
        calibrated: Calibration of an earlier conversion, to use instead.
    """

    source: Path
    purpose: Purpose = Purpose()
    sample: Path | None = None
    label: str | None = None
    segments: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    trust_pickle: bool = False
    python: Path | None = None
    missing: float | None = None
    shrinking: Shrinking = Shrinking()
    expected: Path | None = None
    columns: tuple[str, ...] = ()
    calibration: Path | None = None
    calibrated: Calibration | None = None


def convert_file(request: Conversion) -> Converted:
    """
    Convert and prove a model's file.

    Raises:
        InputError: A file cannot be used, or does not fit the product.
        ConversionError: The model cannot be converted.
        TradeError: Made smaller, it loses more than allowed.
        RepositoryError: The model does not fit the configuration of its step.
    """
    columns = {"segment": request.segments, "sensitive": request.sensitive}
    for argument, named in {"label": request.label, **columns}.items():
        if named and request.sample is None:
            problem = "names a column of the sample, and there is no sample"
            raise ArgumentError(argument, problem)
    for argument, named in columns.items():
        if named and not request.label:
            raise ArgumentError(argument, "is judged by labels: name their column")
    with _opened(request) as model:
        sample = None
        if request.sample is not None:
            sample = _rows(request, request.sample, facts=model.facts)
        return convert_model(
            _with_calibration(request, model, sample=sample),
            origin=str(request.source),
            purpose=request.purpose,
            sample=sample,
            targets=request.targets,
            shrinking=request.shrinking,
            expected=request.expected,
            from_file=request.python is None,
        )


def made_from(request: Conversion, folder: Path) -> MadeFrom:
    """Record the files of a conversion, with paths relative to its folder."""
    sample = request.sample
    return MadeFrom(
        source=source_file(request.source, folder),
        sample=None if sample is None else source_file(sample, folder),
        columns=request.columns,
        missing=request.missing,
    )


def source_answers(request: Conversion) -> tuple[F64, F64]:
    """
    Predict the raw rows of the sample with the source, in its own process.

    Returns:
        At most 1,000 rows, evenly spaced, and their probabilities; float64 [N, F] and
        [N, K].

    Raises:
        InputError: A file cannot be used, or the source predicts no row.
        ConversionError: The source cannot be read.
    """
    if request.sample is None:
        raise ArgumentError("sample", "names the raw rows to answer, and is missing")
    with _opened(request) as model:
        sample = _rows(request, request.sample, facts=model.facts)
        model = _with_calibration(request, model, sample=sample)
        if request.purpose.spec is not None and not request.purpose.ranks:
            model = with_words(str(request.source), model, request.purpose.spec)
        rows = sample.rows.astype(np.float64) if sample.raw is None else sample.raw
        at = np.linspace(0, len(rows) - 1, min(len(rows), _ANSWERED)).astype(int)
        answers = model.predict(rows[at])
    known = ~np.isnan(answers).any(axis=1)
    if not known.any():
        raise InputError(request.sample, "has no row that the source model answers")
    return rows[at][known], answers[known]


def convert_model(
    model: TrainedModel,
    *,
    origin: str,
    purpose: Purpose,
    sample: Sample | None,
    judged: Sample | None = None,
    targets: Sequence[str] = (),
    shrinking: Shrinking = Shrinking(),  # noqa: B008  (frozen)
    expected: Path | None = None,
    from_file: bool = False,
) -> Converted:
    """
    Convert and prove an opened model, and make it smaller if requested.

    Args:
        origin: Name of the model in messages.
        sample: Rows to prove it on; None generates some.
        judged: Labelled rows to measure its quality on; None takes the sample, unless
            it was trained on that.
        targets: Other Triton releases to prove it for.
        expected: File with the author's predictions for the sample's rows.
        from_file: True if the source was read from a file.

    Raises:
        ParityError: Its predictions differ from those that the author expects.
        InputError: Its features are not those of the product, a label is none of its
            classes, or the options do not go together.
        ConversionError: It cannot be converted.
        TradeError: Made smaller, it loses more than allowed.
        RepositoryError: It does not fit the configuration of its step.
    """
    shrinking.require_possible(sample)
    calibration = getattr(model, "calibration", None)
    if calibration is not None and purpose.names is None:
        purpose = msgspec.structs.replace(
            purpose, thresholds=DETECTED.thresholds, levels=DETECTED
        )
    _require_kind(origin, model.facts, purpose)
    if model.facts.number:
        _require_number(origin, sample=sample, shrinking=shrinking)
        if purpose.names is None:
            purpose = msgspec.structs.replace(purpose, thresholds=())
    if expected is not None and calibration is not None:
        problem = "are probabilities, and an outlier detector's author has raw scores"
        raise ArgumentError("expected", problem)
    if expected is not None and shrinking != Shrinking(gate=shrinking.gate):
        problem = "says what the whole model answers, not a smaller or another one"
        raise ArgumentError("expected", problem)
    names = _names(origin, purpose.names, model.facts, sample)
    if purpose.names is not None:
        _require_order(origin, model.facts.classes)
    if purpose.spec is not None and not purpose.ranks:
        model = with_words(origin, model, purpose.spec)
    if model.facts.ranks or purpose.ranks:
        model = Ranker(model)
    judge = None if sample is None else _judge(sample, purpose, model.facts)
    source = smaller_source(model, shrinking, judge=judge)
    rows = None if sample is None else sample.rows
    proven = prove(
        source.model,
        samples=rows,
        thresholds=purpose.thresholds,
        targets=targets,
        wide=purpose.wide,
    )
    if shrinking.tensorize is not None:
        proven = tensorized(proven, shrinking.tensorize, targets=targets)
    oracle = oracle_of(
        source.model,
        proven.model,
        sample=sample,
        expected=expected,
        from_file=from_file,
    )
    served, trades = proven.model, source.trades
    explanation = explain(
        source.model, names=names, samples=rows, reference=proven.reference
    )
    if shrinking.quantize is not None and proven.passed:
        served, trade = quantized(proven, source, shrinking=shrinking)
        trades = (*trades, trade)
        explanation = unexplained(
            "int8 arithmetic: a score is no sum of the coefficients",
            features=names,
            classes=explanation.classes,
        )
    if purpose.config is not None:
        _require_fit(served, purpose.config)
    return Converted(
        proven=proven,
        model=served,
        names=names,
        purpose=purpose,
        sample=sample,
        judged=judged,
        explanation=explanation,
        oracle=oracle,
        calibration=calibration,
        trades=trades,
        allowed=shrinking.gate if trades else None,
        sweep=source.sweep,
        unseen=source.unseen,
    )


@contextmanager
def _opened(request: Conversion) -> Iterator[TrainedModel]:
    """Open the source, with the names of its features where the user gives them."""
    with open_source(
        request.source,
        trust_pickle=request.trust_pickle,
        python=request.python,
        missing=request.missing,
        columns=_column_count(request),
    ) as opened:
        yield with_names(opened, request.columns, origin=str(request.source))


def _with_calibration(
    request: Conversion, model: TrainedModel, *, sample: Sample | None
) -> TrainedModel:
    """
    Calibrate an outlier detector; return other models unchanged.

    Raises:
        ArgumentError: The rows cannot be used, there are none, or it is no detector.
        ConversionError: It is to be made smaller.
    """
    facts = model.facts
    if facts.anomaly is None:
        if request.calibration is not None:
            problem = f"is for outlier detectors; {request.source} is none"
            raise ArgumentError("calibration", problem)
        return model
    if request.shrinking != Shrinking(gate=request.shrinking.gate):
        raise ConversionError(
            f"{request.source} is an outlier detector, which is converted as it is: "
            "train a smaller one instead of pruning, distilling or quantizing it"
        )
    if request.calibrated is not None:
        return CalibratedDetector(model, request.calibrated)
    if request.calibration is not None:
        normal = _rows(request, request.calibration, facts=facts, labelled=False)
        note = f"rows of {request.calibration.name}"
    elif sample is not None:
        normal, note = sample, f"rows of {Path(sample.source).name}"
        label = sample.classes((0, 1))
        if label is not None:
            normal = sample.take(np.flatnonzero(label == 0))
            note += f" without those with {sample.label_name} 1"
    else:
        raise ArgumentError(
            "calibration",
            f"is missing: {request.source} is an outlier detector, and rows of normal "
            "behaviour turn its raw score into a false-alarm probability",
        )
    columns = normal.rows.shape[1]
    if columns != facts.columns:
        problem = f"the model has {facts.columns} features, the {note} have {columns}"
        raise ArgumentError("calibration", problem)
    at = np.linspace(0, len(normal.rows) - 1, min(len(normal.rows), MOST_ROWS))
    scores = model.predict(normal.rows[at.astype(int)])[:, 0]
    fitted = fit_calibration(scores, form=facts.anomaly, rows=note)
    return CalibratedDetector(model, fitted)


def _column_count(request: Conversion) -> int | None:
    """Return the number of features for a file that does not say; None if unknown."""
    if request.columns:
        return len(request.columns)
    if request.purpose.names is not None:
        return len(request.purpose.names)
    if request.sample is None or format_of(request.source) != "onnx":
        return None
    return len(_rows(request, request.sample, facts=None).names)


def _rows(
    request: Conversion, path: Path, *, facts: Facts | None, labelled: bool = True
) -> Sample:
    """Read the sample, with words replaced by the codes that the model has for them."""
    own = None if facts is None else facts.names
    names = request.purpose.names or own
    known = {} if facts is None or names is None else facts.categories
    return read_sample(
        path,
        names=names,
        label=request.label if labelled else None,
        segments=request.segments if labelled else (),
        sensitive=request.sensitive if labelled else (),
        columns=None if facts is None else facts.columns,
        words={
            names[at]: [str(word) for word in one.known]
            for at, one in known.items()
            if names is not None and at < len(names) and one.codes
        },
    )


def _judge(sample: Sample, purpose: Purpose, facts: Facts) -> Judge:
    """Return the rows to judge on; fail early if a label is no class of the model."""
    label = sample.classes(facts.classes)
    return Judge(rows=sample.rows, label=label, thresholds=purpose.thresholds)


def _names(
    origin: str, wanted: tuple[str, ...] | None, facts: Facts, sample: Sample | None
) -> tuple[str, ...]:
    """Return the feature names; the model's own names must be those of the product."""
    columns, own = facts.columns, facts.names
    if wanted is None:
        known = own or (sample.names if sample is not None else ())
        numbered = tuple(f"f{number}" for number in range(columns))
        return known if len(known) == columns else numbered
    if len(wanted) != columns:
        raise InputError(
            origin, f"has {columns} features, the product has {len(wanted)}"
        )
    if own is not None and own != wanted:
        at = next(n for n, name in enumerate(wanted) if own[n] != name)
        raise InputError(
            origin,
            f"was trained with {own[at]!r} where the product has {wanted[at]!r}",
            where=f"feature {at}",
        )
    return wanted


def _require_kind(origin: str, facts: Facts, purpose: Purpose) -> None:
    """Raise InputError unless the product's policy reads what the model answers."""
    if purpose.number is None:
        return
    if facts.ranks and not purpose.ranks:
        problem = "orders candidates, and the product decides: it needs a product that"
        raise InputError(origin, f"{problem} ranks, or another model")
    if purpose.number == facts.number:
        return
    if facts.number:
        problem = (
            "answers a number, and the product's policy reads probabilities: name the "
            "number in policy.yaml, labels: [price] and score: {value: price}"
        )
    else:
        problem = (
            "answers probabilities, and the product's policy reads a number: name "
            "the label in policy.yaml, score: LABEL"
        )
    raise InputError(origin, problem)


def _require_number(
    origin: str, *, sample: Sample | None, shrinking: Shrinking
) -> None:
    """Refuse options that judge classes for a model that answers a number."""
    if sample is not None and sample.label is not None:
        problem = f"is a class to judge by, and {origin} answers a number: leave it out"
        raise ArgumentError("label", problem)
    if shrinking != Shrinking(gate=shrinking.gate):
        raise ConversionError(
            f"{origin} answers a number and is converted as it is: train a smaller "
            "one instead of pruning, distilling or quantizing it"
        )


def _require_order(origin: str, classes: tuple[int | str, ...]) -> None:
    """
    Raise unless the second of two classes is the one that a policy acts on.

    Libraries sort labels: of 'fraud' and 'genuine' the second is 'genuine', and its
    probability would be served as the score.
    """
    names = tuple(str(one).casefold() for one in classes)
    texts = all(isinstance(one, str) for one in classes)
    if len(classes) == 2 and texts and names not in _PLAIN:
        raise InputError(
            origin,
            f"has the classes {classes[0]!r} and {classes[1]!r}, in this order: the "
            f"score would be the probability of {classes[1]!r}; train it on 0 and 1, "
            "1 for what the policy acts on",
        )


def _require_fit(model: bytes, config: Any) -> None:
    """Raise RepositoryError unless the model fits its step's configuration."""
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        path = Path(name) / MODEL_FILE
        path.write_bytes(model)
        for finding in onnx_findings(path, config):
            raise RepositoryError("model", finding.problem, where=finding.where)
