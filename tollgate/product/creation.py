"""Create a product: write files, train, convert, test on a server, publish."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import ArgumentError, RepositoryError, ServerError
from tollgate.feature_parity import replay_newest
from tollgate.features.spec.feature_spec import wire_inputs
from tollgate.history.request_columns import field_columns, wire_fields
from tollgate.pipeline import (
    ProgressBar,
    no_progress_bar,
    publish_and_release,
    wait_for_store,
)
from tollgate.product.files import ASK_FILE, ask_text, build_features, write_texts
from tollgate.product.model import (
    ExternalModel,
    Kind,
    ModelFile,
    WindowGain,
    judge_windows,
    missing_of,
    open_external_model,
    train_model,
)
from tollgate.product.placement import place, require_free
from tollgate.product.plan import Plan
from tollgate.product.rows import Rows, table_vectors
from tollgate.product.splitting import describe, split
from tollgate.product.thresholds import Thresholds, choose_thresholds
from tollgate.replay import LOAD_DEADLINE_S
from tollgate.schema import Degraded

if TYPE_CHECKING:
    from converters.model import TrainedModel
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.server.serving.embedded import Embedded
    from tollgate_client import Decisions

I64 = npt.NDArray[np.int64]

_MAX_ROWS = 1_000  # number of rows to decide without windows
_MAX_ROWS_WITH_WINDOWS = 128  # with windows, each row waits for the ones before it
_TIMEOUT_S = 60.0
# The tolerance of a conversion's proof: one float32 against the framework's score.
_TOLERANCE = 1e-5
_STORE_DEADLINE_MS = 10_000  # a slow moment of this machine must not change a score
# Of each call in a trial. A call that is late goes to the spool, and enough of them
# open the circuit breaker, whatever the deadline of the request is.
_TRIAL_DEADLINE_MS = 2_000
# Bits of rows scored on other values than the table's: the store missed even this
# deadline, or applied an earlier event too late.
_OTHER_VALUES = np.uint32(
    Degraded.STORE_UNAVAILABLE | Degraded.LAST_KNOWN_VECTOR | Degraded.EVENT_TOO_LATE
)


class ServingTrial(msgspec.Struct, frozen=True, eq=False):
    """
    Decisions of a server on held-out rows.

    Attributes:
        rows: Their positions; int [K].
        answers: Decision of each.
        label: Their true outcomes; int8 [K].
        largest_difference: The greatest difference of a score from the model's own.
        compared: Number of scores in that comparison; the other rows are degraded.
        replayed: Number of purchases whose online vectors were compared with the
            offline ones.
    """

    rows: I64
    answers: Decisions
    label: npt.NDArray[np.int8]
    largest_difference: float
    compared: int
    replayed: int


def run_serving_trial(
    repository: Path,
    *,
    spec: FeatureSpec,
    rows: Rows,
    test: I64,
    score: npt.NDArray[np.float64],
    state: Path,
    progress_bar: ProgressBar,
) -> ServingTrial:
    """
    Serve a product on this machine for a moment, and decide held-out rows.

    Args:
        repository: Repository that contains the product.
        spec: Its features.
        rows: All rows.
        test: Held-out rows; positions [T].
        score: The source's own scores of these; float64 [T].
        state: A folder for the server.
        progress_bar: Shows the progress of the comparison of vectors.

    Raises:
        ServerError: It does not start, or its scores differ from the model's.
    """
    from tollgate.server.serving.embedded import serve

    at = _select_rows(rows, test, timed=bool(spec.entities))
    patient = repository
    if spec.entities:
        patient = state / "models"
        shutil.copytree(repository, patient)
        wait_for_store(patient, product=spec.product, deadline_ms=_TRIAL_DEADLINE_MS)
    with serve(patient, products=(spec.product,), state=state) as server:
        order, answers = _answers(test[at], spec=spec, rows=rows, server=server)
    replayed = 0
    if spec.entities:
        with progress_bar("replaying") as advance:
            replayed = replay_newest(spec, rows.history, progress=advance)
    picked, wanted = test[at][order], score[at[order]]
    _require_answers(answers, spec.product)
    comparable = (answers.degraded & _OTHER_VALUES) == 0
    if not comparable.any():
        problem = f"all of {len(comparable)} rows were degraded: none can be compared"
        raise ServerError(spec.product, problem)
    difference = np.where(comparable, np.abs(answers.score - wanted), 0.0)
    largest_difference = float(difference.max())
    if not largest_difference <= _TOLERANCE:
        wrong = ~(difference <= _TOLERANCE)
        row = int(np.argmax(wrong))
        problem = (
            f"{int(wrong.sum())} of {int(comparable.sum())} served scores "
            f"are not the source's; the first, of row {picked[row] + 1}: "
            f"{answers.score[row]:.9g}, the source says {wanted[row]:.9g}"
        )
        raise ServerError(spec.product, problem)
    label = rows.history.label[picked]
    return ServingTrial(
        picked, answers, label, largest_difference, int(comparable.sum()), replayed
    )


def _answers(
    picked: I64, *, spec: FeatureSpec, rows: Rows, server: Embedded
) -> tuple[I64, Decisions]:
    """Decide rows; return the order in which they were sent, and their decisions."""
    from tollgate_client import Client, join

    positions: list[I64] = []
    parts: list[Decisions] = []
    fields = wire_fields(spec, rows.frame)
    with Client(
        server.grpc_url,
        product=spec.product,
        inputs=wire_inputs(spec),
        fields=fields,
        timeout_s=_TIMEOUT_S,
        store_deadline_ms=_STORE_DEADLINE_MS,
    ) as client:
        for batch in _in_time_order(
            picked, spec=spec, rows=rows, store_url=server.store_url
        ):
            positions.append(batch)
            columns = _request(picked[batch], spec=spec, rows=rows, fields=fields)
            parts += client.decide_many(columns, in_flight=1)
    return np.concatenate(positions), join(parts)


def _select_rows(rows: Rows, test: I64, *, timed: bool) -> I64:
    """Select the last held-out rows in time, or some of each outcome, by position."""
    if timed:
        order = np.lexsort((test, rows.history.event_time_us[test]))
        return np.asarray(order[-_MAX_ROWS_WITH_WINDOWS:], np.int64)
    label = rows.history.label[test]
    half = _MAX_ROWS // 2
    parts = [np.flatnonzero(label == outcome)[:half] for outcome in (1, 0)]
    return np.concatenate(parts)


def _in_time_order(
    picked: I64, *, spec: FeatureSpec, rows: Rows, store_url: str
) -> Iterator[I64]:
    """
    Yield the next picked rows to send; positions among them.

    Earlier events of their entities are in the store by then.
    """
    from tollgate.replay import purchases_of, spans
    from tollgate.store.online_features import OnlineFeatures
    from tollgate.store.redis.cluster_store import open_store

    if not spec.entities:
        yield np.arange(len(picked))
        return
    history = rows.history
    concerned = np.zeros(len(history), np.bool_)
    for ids in history.entity_id.values():
        wanted = {ids[row] for row in picked}
        concerned |= np.fromiter((one in wanted for one in ids), np.bool_, len(ids))
    concerned &= history.event_time_us <= history.event_time_us[picked].max()
    known = np.flatnonzero(concerned)
    place = {row: at for at, row in enumerate(picked.tolist())}
    online = OnlineFeatures(spec, open_store(store_url, deadline_s=LOAD_DEADLINE_S))
    for span in spans(spec, history.take(known)):
        found = known[span.purchases]
        is_picked = np.isin(found, picked)
        # A row must not come after later events of its id that are in tiles by then.
        for part in np.split(found, np.flatnonzero(np.diff(is_picked)) + 1):
            if part[0] in place:
                yield np.array([place[row] for row in part.tolist()])
            else:
                online.load(purchases_of(spec, history, part))


def _request(
    picked: I64, *, spec: FeatureSpec, rows: Rows, fields: dict[str, str]
) -> dict[str, Any]:
    """
    Build the columns of a request; rows without a time are decided at the current time.
    """
    frame = rows.frame[picked]
    columns: dict[str, Any] = dict(
        field_columns(frame, fields, errors=[""] * len(frame))
    )
    now_us = int(time.time() * 1e6)
    for name in spec.columns:
        there = name in frame.columns
        columns[name] = frame[name].to_list() if there else [now_us] * len(frame)
    return columns


def _require_answers(answers: Decisions, product: str) -> None:
    bad = [text for text in answers.error.tolist() if text]
    if bad:
        problem = f"{len(bad)} of {len(answers)} rows were refused: {bad[0]}"
        raise ServerError(product, problem)


Report = Callable[[str, str], None]


def _with_useful_windows(
    plan: Plan, gains: Sequence[WindowGain | None], *, report: Report
) -> Plan:
    """Drop the windows of numbers that do not help a model; report the reason."""
    entities = []
    for entity, gain in zip(plan.entities, gains, strict=True):
        if entity.numbers:
            text = f"{entity.source}: {plan.numbers_text(entity)}: left out, "
            if gain is None:
                text += "too few rows to judge them"
            else:
                text = text.replace("left out", "used") if gain.useful else text
                text += (
                    f"AUC {gain.with_them:.4f} with them and {gain.without:.4f} "
                    "without, on the last fifth of the training rows"
                )
            report("windows of numbers", text)
            if gain is None or not gain.useful:
                entity = msgspec.structs.replace(entity, numbers=())
        entities.append(entity)
    return msgspec.structs.replace(plan, entities=tuple(entities))


class EvaluatedModel(msgspec.Struct, frozen=True, eq=False):
    """
    A trained model, and its scores of T held-out rows.

    Attributes:
        spec: The product's features.
        rows: All rows.
        model: The model.
        comparison: Text that compares how simple models rank the same rows.
        kind: Kind of model that train.py trains.
        features: Served features of the held-out rows; float32 [T, F].
        model_inputs: Inputs of the source model for these rows: as served, or for a
            model from a file as the table has them; [T, F].
        test: Positions of the held-out rows; int64 [T].
        label: Their true outcomes; int8 [T].
        score: Their predicted probabilities of the outcome; float64 [T].
        auc: AUC of these scores.
        thresholds: Thresholds that were chosen on these scores.
    """

    spec: FeatureSpec
    rows: Rows
    comparison: str
    model: TrainedModel
    kind: Kind
    features: npt.NDArray[np.float32]
    model_inputs: npt.NDArray[np.floating[Any]]
    test: npt.NDArray[np.int64]
    label: npt.NDArray[np.int8]
    score: npt.NDArray[np.float64]
    auc: float
    thresholds: Thresholds


class CreatedProduct(msgspec.Struct, frozen=True, eq=False):
    """
    A created product with its evaluation.

    Attributes:
        thresholds: Its thresholds.
        auc: AUC on the held-out rows.
        average_precision: Average precision on the held-out rows.
        trial: Decisions on some held-out rows when it was served.
        seen: True if the model may have been trained on the held-out rows.
    """

    thresholds: Thresholds
    auc: float
    average_precision: float
    trial: ServingTrial
    seen: bool


def create_product(
    plan: Plan,
    *,
    repository: Path,
    model: ModelFile | None,
    kind: Kind,
    report: Report,
    progress_bar: ProgressBar = no_progress_bar,
    show: Callable[[Plan], None] = lambda plan: None,
) -> CreatedProduct:
    """
    Create a product and put it into a repository; a failure leaves that unchanged.

    Args:
        plan: The product.
        repository: The model repository.
        model: A trained model; None trains one.
        kind: Kind of model to train.
        report: Called with each finished step, and its result.
        progress_bar: Shows the progress of a step.
        show: Called with the plan once the model's features are found in it.

    Raises:
        InputError: Table, model or name are unusable.
        ConversionError: The model cannot be converted.
        ServerError: It does not serve.
    """
    from tollgate.repository.versions import staging

    product = plan.choices.product
    require_free(repository, product)
    with ExitStack() as stack:
        external = None
        if model is not None:
            external = stack.enter_context(open_external_model(model, plan))
            plan = msgspec.structs.replace(plan, fields=external.fields)
        show(plan)
        folder = stack.enter_context(staging(repository)).version
        staged = folder / "models"
        staged.mkdir(parents=True)
        created = _create(
            plan,
            staged,
            external=external,
            kind=kind,
            report=report,
            progress_bar=progress_bar,
        )
        require_free(repository, product)
        place(staged, repository=repository, product=product)
    return created


def _create(
    plan: Plan,
    staged: Path,
    *,
    external: ExternalModel | None,
    kind: Kind,
    report: Report,
    progress_bar: ProgressBar,
) -> CreatedProduct:
    """Write, train, publish, check and try the product in a staging folder."""
    from tollgate.evaluation import average_precision

    evaluated = _evaluate(plan, staged, external=external, kind=kind, report=report)
    write_texts(
        plan,
        staged,
        spec=evaluated.spec,
        thresholds=evaluated.thresholds,
        kind=evaluated.kind,
        seen=external is not None,
        wide=_needs_float64(evaluated),
    )
    release = _publish(plan, staged, evaluated=evaluated, external=external)
    report("converted, proven, published", f"release {release}")
    warnings = check_staged(staged, evaluated.spec.product)
    report("checked", "; ".join(warnings) or "valid")
    with tempfile.TemporaryDirectory(prefix="tollgate-") as state:
        trial = run_serving_trial(
            staged,
            spec=evaluated.spec,
            rows=evaluated.rows,
            test=evaluated.test,
            score=evaluated.score,
            state=Path(state),
            progress_bar=progress_bar,
        )
    report("served and decided", _comparison_text(plan, evaluated, trial))
    example = ask_text(
        evaluated.rows.frame,
        row=int(trial.rows[0]),
        product=evaluated.spec.product,
        inputs=wire_inputs(evaluated.spec),
        fields=wire_fields(evaluated.spec, evaluated.rows.frame),
    )
    (staged / evaluated.spec.product / ASK_FILE).write_text(example, "utf-8")
    return CreatedProduct(
        thresholds=evaluated.thresholds,
        auc=evaluated.auc,
        average_precision=average_precision(evaluated.label, evaluated.score),
        trial=trial,
        seen=external is not None,
    )


def _needs_float64(evaluated: EvaluatedModel) -> bool:
    """Return whether rounding its input could change the source's score of a row."""
    model_inputs = evaluated.model_inputs
    rounded = model_inputs.astype(np.float32).astype(np.float64)
    moved = (rounded != model_inputs) & ~np.isnan(model_inputs)
    return evaluated.model.facts.wide and bool(moved.any())


def _comparison_text(plan: Plan, evaluated: EvaluatedModel, trial: ServingTrial) -> str:
    """Describe how far served scores are from the source's, on which rows."""
    facts = evaluated.model.facts
    text = (
        f"served = source ({facts.framework} {facts.version}) on {trial.compared:,} "
        f"raw rows of {plan.choices.table.name}: largest difference "
        f"{trial.largest_difference:.1e}"
    )
    left = len(trial.rows) - trial.compared
    if left:
        text += f"; {left:,} more were degraded and are not compared"
    if trial.replayed:
        text += f"; {trial.replayed:,} vectors online = offline in every bit"
    return text


def _evaluate(
    plan: Plan,
    staged: Path,
    *,
    external: ExternalModel | None,
    kind: Kind,
    report: Report,
) -> EvaluatedModel:
    """Build the features, train on most rows unless a model is given, judge it."""
    from converters.comparison import AHEAD, comparison_text, simple_models
    from tollgate.evaluation import roc_auc

    missing = missing_of(plan, external)
    spec, rows, features, hops = build_features(
        plan, staged, fields=plan.fields, missing=missing
    )
    label, time_us = rows.history.label, rows.history.event_time_us
    train, test = split(
        label,
        time_us=time_us,
        spec=spec,
        label_delay_us=plan.choices.label_delay_us,
    )
    if any(one.numbers for one in plan.entities):
        gains = judge_windows(
            features[train], label[train], spec=spec, kind=kind, time_us=time_us[train]
        )
        useful = _with_useful_windows(plan, gains, report=report)
        if useful.entities != plan.entities:
            spec, rows, features, hops = build_features(
                useful, staged, fields=plan.fields, missing=missing
            )
    for one in hops:
        report("windows", one.text)
    report("features", f"{len(features):,} rows of {len(spec.features)}")
    if external is None:
        model, kind = train_model(
            features[train],
            label[train],
            spec=spec,
            kind=kind,
            time_us=time_us[train],
            seed=0,
            report=report,
        )
    else:
        model = external.model
        kind = "boosting" if kind == "auto" else kind  # only for train.py
    # A model from a file scores the table's own rows, not the served ones.
    model_inputs = features if external is None else table_vectors(spec, rows, features)
    score = np.asarray(model.predict(model_inputs[test])[:, 1], np.float64)
    if not np.isfinite(score).all():
        row = int(np.flatnonzero(test)[~np.isfinite(score)][0])
        raise ArgumentError("model", f"gives no probability for row {row}")
    auc = roc_auc(label[test], score)
    on = f"{len(score):,} held-out rows"
    if external:
        on = f"{len(score):,} rows that it may have been trained on"
    report("model", f"{model.facts.framework}, AUC {auc:.4f} on {on}")
    simple = simple_models(features, label, spec=spec, test=test, train=train)
    comparison = f"AUC of simple models on them: {comparison_text(simple)}"
    report("compared", comparison)
    best = max(simple, key=lambda one: one.auc)
    if best.auc > auc + AHEAD:
        warning = (
            f"{best.name} has an AUC of {best.auc:.4f} on these rows, the model "
            f"{auc:.4f}: do not release it before you know why"
        )
        report("WARNING", warning)
        comparison += f"; WARNING: {warning}"
    return EvaluatedModel(
        spec=spec,
        rows=rows,
        model=model,
        comparison=comparison,
        kind=kind,
        features=features[test],
        model_inputs=model_inputs[test],
        test=np.flatnonzero(test),
        label=label[test],
        score=score,
        auc=auc,
        thresholds=choose_thresholds(
            score,
            label[test],
            goal=plan.choices.goal,
            origin=describe(test, time_us=rows.history.event_time_us),
        ),
    )


def _publish(
    plan: Plan,
    staged: Path,
    *,
    evaluated: EvaluatedModel,
    external: ExternalModel | None,
) -> str:
    """Convert the model, prove it on the held-out rows, publish and release it."""
    from converters.conversion import convert_model
    from converters.purpose import purpose_of
    from converters.sample import Sample

    product, label = evaluated.spec.product, evaluated.label
    converted = convert_model(
        evaluated.model,
        origin="the model",
        purpose=purpose_of(staged, product),
        sample=Sample(
            rows=evaluated.features,
            names=evaluated.spec.feature_names,
            label=external.classes_of(label) if external else tuple(label.tolist()),
            segments={
                name: tuple(np.array(values)[evaluated.test])
                for name, values in evaluated.rows.segments.items()
            },
            sensitive=plan.choices.sensitive,
            comparison=evaluated.comparison,
            origin="sample" if external else "held out",
            source=str(plan.choices.table),
            raw=evaluated.model_inputs if external else None,
        ),
        from_file=external is not None,
    )
    reason = f"made from {plan.choices.table.name}"
    return publish_and_release(
        converted, repository=staged, product=product, reason=reason
    ).name


def check_staged(staged: Path, product: str) -> tuple[str, ...]:
    """Lint a staged product: return its warnings, refuse it if there is an error."""
    from tollgate.repository.lint.lint_report import at_least
    from tollgate.repository.lint.lint_rule import Severity
    from tollgate.repository.lint.linting import Question, lint

    findings = lint(Question(repository=staged, product=product))
    found = at_least(findings.issues, Severity.WARNING)
    for one in found:
        if one.severity >= Severity.ERROR:
            raise RepositoryError(one.file, one.problem, where=one.where)
    return tuple(f"{one.rule.code} {one.problem}" for one in found)
