"""Create a product: write files, train, convert, test on a server, publish."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.cli.product_model import (
    Brought,
    Given,
    Kind,
    brought,
    missing_of,
    trained,
)
from tollgate.cli.product_trying import Tried, try_served
from tollgate.cli.wire import wire_fields
from tollgate.errors import InputError, RepositoryError
from tollgate.features.wire import wire_inputs
from tollgate.product import thresholds
from tollgate.product.ask_text import ASK_FILE, ask_text
from tollgate.product.building import build_features, write_texts
from tollgate.product.placing import place, require_free
from tollgate.product.plan import Plan
from tollgate.product.rows import Rows, table_vectors
from tollgate.product.splitting import describe, split
from tollgate.product.thresholds import Chosen

if TYPE_CHECKING:
    from converters.model import TrainedModel
    from tollgate.features.spec import FeatureSpec

Tell = Callable[[str, str], None]


class Learned(msgspec.Struct, frozen=True, eq=False):
    """
    A trained model, and its scores of T held-out rows.

    Attributes:
        spec: The product's features.
        rows: All rows.
        model: The model.
        comparison: Text that compares how simple models rank the same rows.
        kind: Kind of model that train.py trains.
        features: Served features of the held-out rows; float32 [T, F].
        asked: Inputs of the source model for these rows: as served, or for a model from
            a file as the table has them; [T, F].
        test: Positions of the held-out rows; int64 [T].
        label: Their true outcomes; int8 [T].
        score: Their predicted probabilities of the outcome; float64 [T].
        auc: AUC of these scores.
        chosen: Thresholds.
    """

    spec: FeatureSpec
    rows: Rows
    comparison: str
    model: TrainedModel
    kind: Kind
    features: npt.NDArray[np.float32]
    asked: npt.NDArray[np.floating[Any]]
    test: npt.NDArray[np.int64]
    label: npt.NDArray[np.int8]
    score: npt.NDArray[np.float64]
    auc: float
    chosen: Chosen


class Made(msgspec.Struct, frozen=True, eq=False):
    """
    A created product with its evaluation.

    Attributes:
        chosen: Its thresholds.
        auc: AUC on the held-out rows.
        average_precision: Average precision on the held-out rows.
        tried: Decisions on some held-out rows when it was served.
        seen: True if the model may have been trained on the held-out rows.
    """

    chosen: Chosen
    auc: float
    average_precision: float
    tried: Tried
    seen: bool


def make(
    plan: Plan,
    *,
    repository: Path,
    model: Given | None,
    kind: Kind,
    tell: Tell,
    show: Callable[[Plan], None] = lambda plan: None,
) -> Made:
    """
    Create a product and put it into a repository; a failure leaves that unchanged.

    Args:
        plan: The product.
        repository: The model repository.
        model: A trained model; None trains one.
        kind: Kind of model to train.
        tell: Called with each finished step, and its result.
        show: Called with the plan once the model's features are found in it.

    Raises:
        InputError: Table, model or name are unusable.
        ConversionError: The model cannot be converted.
        ServerError: It does not serve.
    """
    from tollgate.repository.staging import staging

    product = plan.asked.product
    require_free(repository, product)
    with ExitStack() as stack:
        given = None
        if model is not None:
            given = stack.enter_context(brought(model, plan))
            plan = msgspec.structs.replace(plan, fields=given.fields)
        show(plan)
        folder = stack.enter_context(staging(repository)).version
        staged = folder / "models"
        staged.mkdir(parents=True)
        made = _make(plan, staged, given=given, kind=kind, tell=tell)
        require_free(repository, product)
        place(staged, repository=repository, product=product)
    return made


def _make(
    plan: Plan, staged: Path, *, given: Brought | None, kind: Kind, tell: Tell
) -> Made:
    from tollgate.evaluation import average_precision

    learned = _learned(plan, staged, given=given, kind=kind, tell=tell)
    write_texts(
        plan,
        staged,
        spec=learned.spec,
        chosen=learned.chosen,
        kind=learned.kind,
        seen=given is not None,
        wide=_needs_float64(learned),
    )
    release = _released(plan, staged, learned=learned, given=given)
    tell("converted, proven, published", f"release {release}")
    warnings = _checked(staged, learned.spec.product)
    tell("checked", "; ".join(warnings) or "sound")
    with tempfile.TemporaryDirectory(prefix="tollgate-") as state:
        tried = try_served(
            staged,
            spec=learned.spec,
            rows=learned.rows,
            test=learned.test,
            score=learned.score,
            state=Path(state),
        )
    tell("served and decided", _compared(plan, learned, tried))
    example = ask_text(
        learned.rows.frame,
        row=int(tried.rows[0]),
        product=learned.spec.product,
        inputs=wire_inputs(learned.spec),
        fields=wire_fields(learned.spec, learned.rows.frame),
    )
    (staged / learned.spec.product / ASK_FILE).write_text(example, "utf-8")
    return Made(
        chosen=learned.chosen,
        auc=learned.auc,
        average_precision=average_precision(learned.label, learned.score),
        tried=tried,
        seen=given is not None,
    )


def _needs_float64(learned: Learned) -> bool:
    """Return whether rounding its input could change the source's score of a row."""
    asked = learned.asked
    rounded = asked.astype(np.float32).astype(np.float64)
    moved = (rounded != asked) & ~np.isnan(asked)
    return learned.model.facts.wide and bool(moved.any())


def _compared(plan: Plan, learned: Learned, tried: Tried) -> str:
    """Describe how far served scores are from the source's, on which rows."""
    facts = learned.model.facts
    text = (
        f"served = source ({facts.framework} {facts.version}) on {tried.compared:,} "
        f"raw rows of {plan.asked.table.name}: largest difference {tried.furthest:.1e}"
    )
    left = len(tried.rows) - tried.compared
    if left:
        text += f"; {left:,} more were degraded and are not compared"
    if tried.replayed:
        text += f"; {tried.replayed:,} vectors online = offline in every bit"
    return text


def _learned(
    plan: Plan, staged: Path, *, given: Brought | None, kind: Kind, tell: Tell
) -> Learned:
    """Build the features, train on most rows unless a model is given, judge it."""
    from converters.comparison import AHEAD, comparison_text, simple_models
    from tollgate.evaluation import roc_auc

    missing = missing_of(plan, given)
    spec, rows, features = build_features(
        plan, staged, fields=plan.fields, missing=missing
    )
    tell("features", f"{len(features):,} rows of {len(spec.features)}")
    label = rows.history.label
    train, test = split(
        label,
        time_us=rows.history.event_time_us,
        spec=spec,
        label_delay_us=plan.asked.label_delay_us,
    )
    if given is None:
        model, kind = trained(
            features[train],
            label[train],
            spec=spec,
            kind=kind,
            time_us=rows.history.event_time_us[train],
            seed=0,
            tell=tell,
        )
    else:
        model = given.model
        kind = "boosting" if kind == "auto" else kind  # only for train.py
    # A model from a file scores the table's own rows, not the served ones.
    asked = features if given is None else table_vectors(spec, rows, features)
    score = np.asarray(model.predict(asked[test])[:, 1], np.float64)
    if not np.isfinite(score).all():
        row = int(np.flatnonzero(test)[~np.isfinite(score)][0])
        raise InputError("--model", f"gives no probability for row {row}")
    auc = roc_auc(label[test], score)
    on = f"{len(score):,} held-out rows"
    if given:
        on = f"{len(score):,} rows that it may have been trained on"
    tell("model", f"{model.facts.framework}, AUC {auc:.4f} on {on}")
    simple = simple_models(features, label, spec=spec, test=test, train=train)
    comparison = f"AUC of simple models on them: {comparison_text(simple)}"
    tell("compared", comparison)
    best = max(simple, key=lambda one: one.auc)
    if best.auc > auc + AHEAD:
        warning = (
            f"{best.name} has an AUC of {best.auc:.4f} on these rows, the model "
            f"{auc:.4f}: do not release it before you know why"
        )
        tell("WARNING", warning)
        comparison += f"; WARNING: {warning}"
    return Learned(
        spec=spec,
        rows=rows,
        model=model,
        comparison=comparison,
        kind=kind,
        features=features[test],
        asked=asked[test],
        test=np.flatnonzero(test),
        label=label[test],
        score=score,
        auc=auc,
        chosen=thresholds.choose(
            score,
            label[test],
            goal=plan.asked.goal,
            origin=describe(test, time_us=rows.history.event_time_us),
        ),
    )


def _released(
    plan: Plan, staged: Path, *, learned: Learned, given: Brought | None
) -> str:
    """Convert the model, prove it on the held-out rows, publish and release it."""
    from converters.conversion import convert_model
    from converters.purpose import purpose_of
    from converters.sample import Sample
    from tollgate.cli.pipeline import publish_and_release

    product, label = learned.spec.product, learned.label
    converted = convert_model(
        learned.model,
        origin="the model",
        purpose=purpose_of(staged, product),
        sample=Sample(
            rows=learned.features,
            names=learned.spec.feature_names,
            label=given.classes_of(label) if given else tuple(label.tolist()),
            segments={
                name: tuple(np.array(values)[learned.test])
                for name, values in learned.rows.segments.items()
            },
            sensitive=plan.asked.sensitive,
            comparison=learned.comparison,
            origin="sample" if given else "held out",
            source=str(plan.asked.table),
            raw=learned.asked if given else None,
        ),
        from_file=given is not None,
    )
    reason = f"made from {plan.asked.table.name}"
    return publish_and_release(
        converted, repository=staged, product=product, reason=reason
    ).name


def _checked(staged: Path, product: str) -> tuple[str, ...]:
    """Lint the repository; refuse the product if there is an error."""
    from tollgate.repository.lint.linting import Question, lint
    from tollgate.repository.lint.report import at_least
    from tollgate.repository.lint.rule import Severity

    report = lint(Question(repository=staged, product=product))
    found = at_least(report.issues, Severity.WARNING)
    for one in found:
        if one.severity >= Severity.ERROR:
            raise RepositoryError(one.file, one.problem, where=one.where)
    return tuple(f"{one.rule.code} {one.problem}" for one in found)
