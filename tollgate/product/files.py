"""Build a product's features from its table, and write all its files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.hop_choice import HopChoice, resolve_hops
from tollgate.features.offline import build
from tollgate.features.spec.description import decimals_text
from tollgate.features.spec.feature_spec import (
    SPEC_FILE,
    FeatureSpec,
    load_draft,
    load_spec,
)
from tollgate.features.spec.spec_document import duration_us, largest_number
from tollgate.features.spec.tile_form import AUTO
from tollgate.policy import POLICY_FILE
from tollgate.product.plan import Field, Plan
from tollgate.product.rows import Rows, rows_of
from tollgate.product.splitting import split
from tollgate.product.thresholds import (
    FEWEST_DECLINED,
    Costs,
    Rates,
    Thresholds,
)
from tollgate.repository.slo import SLO_FILE
from tollgate.schema import (
    AMOUNT,
    ANSWER_TYPES,
    DEFAULT_OUTCOMES,
    EVENT_TIME,
    MAX_BATCH_ROWS,
    Outcomes,
    context_dtype,
)
from tollgate.templating import WIDTH, render, yaml_list

if TYPE_CHECKING:
    import polars as pl


_STORE_DEADLINE_MS = 5
_TEMPLATES = "tollgate/product/templates"
_TYPES = {AMOUNT: "TYPE_FP64", EVENT_TIME: "TYPE_INT64"}
_FIELD_TYPES = {"number": "TYPE_FP64", "category": "TYPE_STRING"}


def step_names(product: str) -> tuple[str, str, str]:
    """Name the three steps of a product: features, model, decision."""
    return f"{product}_features", f"{product}_model", f"{product}_decision"


def ranking_step_names(product: str) -> tuple[str, str, str]:
    """Name the three steps of a product that ranks: candidates, model, ranking."""
    return f"{product}_candidates", f"{product}_model", f"{product}_ranking"


def config_texts(
    spec: FeatureSpec,
    *,
    wide: bool = False,
    outcomes: Outcomes = DEFAULT_OUTCOMES,
    store_deadline_ms: int = _STORE_DEADLINE_MS,
    hysteresis: bool = False,
) -> dict[str, str]:
    """
    Write a product's configurations: path in the repository -> text.

    Args:
        spec: Its features.
        wide: True if the model takes the features as float64.
        outcomes: Words of its decisions.
        store_deadline_ms: Longest time that a batch waits for the store.
        hysteresis: True if the policy has hysteresis, whose state is in the store.
    """
    product = spec.product
    features, model, decision = step_names(product)
    values = {
        "wide": wide,
        "words": outcomes.words,
        "max_batch_size": MAX_BATCH_ROWS,
        "vector_size": len(spec.features),
        "context_size": context_dtype(spec.entity_names, spec.field_names).itemsize,
        "tensors": request_tensors(spec),
        "answer_types": ANSWER_TYPES,
    }
    return {
        f"{product}/config.pbtxt": render(
            f"{_TEMPLATES}/ensemble.pbtxt.j2",
            {
                **values,
                "product": product,
                "features_step": features,
                "model_step": model,
                "decision_step": decision,
            },
        ),
        f"{features}/config.pbtxt": render(
            f"{_TEMPLATES}/features.pbtxt.j2",
            {
                **values,
                "step": features,
                "has_entities": bool(spec.entities),
                "store_deadline_ms": store_deadline_ms,
            },
        ),
        f"{model}/config.pbtxt": render(
            f"{_TEMPLATES}/model.pbtxt.j2",
            {**values, "step": model, "type": "TYPE_FP64" if wide else "TYPE_FP32"},
        ),
        f"{decision}/config.pbtxt": render(
            f"{_TEMPLATES}/decision.pbtxt.j2",
            {
                **values,
                "step": decision,
                "hysteresis": hysteresis,
                "store_deadline_ms": store_deadline_ms,
            },
        ),
    }


def step_texts(product: str) -> dict[str, str]:
    """Write the Python steps' model.py: path in the repository -> text."""
    features, _, decision = step_names(product)
    steps = {
        features: ("Validate rows and assemble features.", "FeatureStep"),
        decision: ("Turn probabilities into decisions with reasons.", "DecisionStep"),
    }
    return {
        f"{step}/1/model.py": render(
            f"{_TEMPLATES}/step.py.j2", {"step": step, "purpose": purpose, "base": base}
        )
        for step, (purpose, base) in steps.items()
    }


def all_texts(
    spec: FeatureSpec,
    *,
    wide: bool,
    outcomes: Outcomes,
    store_deadline_ms: int = _STORE_DEADLINE_MS,
    hysteresis: bool = False,
) -> Mapping[str, str]:
    """Write all files that follow from a product's features."""
    return {
        **config_texts(
            spec,
            wide=wide,
            outcomes=outcomes,
            store_deadline_ms=store_deadline_ms,
            hysteresis=hysteresis,
        ),
        **step_texts(spec.product),
        f"{spec.product}/1/.gitkeep": "",
    }


def request_tensors(spec: FeatureSpec) -> list[dict[str, object]]:
    """List the tensors of a request; a field is optional."""
    required: list[dict[str, object]] = [
        {"name": name, "type": _TYPES.get(name, "TYPE_STRING"), "optional": False}
        for name in spec.columns
    ]
    fields: list[dict[str, object]] = [
        {"name": one.name, "type": _FIELD_TYPES[one.type], "optional": True}
        for one in spec.fields
    ]
    return required + fields


def policy_text(plan: Plan, thresholds: Thresholds, *, seen: bool) -> str:
    """
    Write policy.yaml.

    Args:
        plan: The product.
        thresholds: Its thresholds.
        seen: True if the model may have been trained on the rows they come from.
    """
    return render(
        "tollgate/product/templates/policy.yaml.j2",
        {
            "product": plan.choices.product,
            "label": plan.choices.label,
            "positive": plan.label.positive,
            "outcome": plan.outcome,
            "other": plan.other,
            "origin": _origin(thresholds, plan.choices.outcomes, seen=seen),
            "review": thresholds.review,
            "decline": thresholds.decline,
            "sensitive": plan.choices.sensitive,
            "words": plan.choices.outcomes.words,
            "default_words": DEFAULT_OUTCOMES.words,
            "codes": plan.choices.outcomes.score_codes,
        },
    )


def slo_text(
    product: str,
    *,
    objective_ms: int = 50,
    delay_ms: float = 4.5,
    list_budget_us: int | None = None,
) -> str:
    """
    Write slo.yaml: the budget of each layer is a share of the objective.

    Args:
        objective_ms: Latency objective of an answer.
        delay_ms: Longest time that a request waits for others at the first step.
        list_budget_us: Time of the model for one list; None for a model of rows, whose
            budget is that of its layer.
    """
    values = {
        "product": product,
        "objective_ms": objective_ms,
        "delay_ms": delay_ms,
        "list_budget_us": list_budget_us,
    }
    return render("tollgate/product/templates/slo.yaml.j2", values)


def _origin(
    thresholds: Thresholds, outcomes: Outcomes, *, seen: bool
) -> tuple[str, ...]:
    """Describe in sentences the origin of the thresholds, and their effect there."""
    kind = "rows" if seen else "held-out rows"
    rows = (
        f"Chosen on {thresholds.rows:,} {kind} ({thresholds.origin}), "
        f"{thresholds.positives:,} of them positive. "
    )
    if seen:
        rows += "The model came from elsewhere and may have been trained on them."
    else:
        rows += "The model was not trained on them, but new rows may fare a bit worse."
    if thresholds.few:
        rows += " Few rows are positive: another sample would give other thresholds."
    total = thresholds.rows
    _, middle, severest = outcomes.words
    review = _effect(
        middle, thresholds.reviewed, found=thresholds.found_reviewed, of=total
    )
    decline = f"{severest}: left out, no score gives {severest}."
    if thresholds.decline is not None:
        decline = _effect(
            severest, thresholds.declined, found=thresholds.found_declined, of=total
        )
    return rows, criterion_text(thresholds), review, decline


def criterion_text(thresholds: Thresholds) -> str:
    """Describe the criterion for the thresholds, and why no score declines."""
    goal, fewest = thresholds.goal, FEWEST_DECLINED
    if isinstance(goal, Costs):
        wrong = "and no cost of a wrong decline, so no score declines"
        if goal.wrong_decline is not None:
            wrong = f"a wrong decline {goal.wrong_decline:g}"
        text = (
            f"Stated: a missed row costs {goal.missed:g}, a review {goal.review:g}, "
            f"{wrong}. These thresholds cost least there: {thresholds.cost:,.10g}, "
            f"where to approve all costs {thresholds.positives * goal.missed:,.10g}."
        )
        if goal.wrong_decline is not None and thresholds.decline is None:
            text += (
                f" No score declines: no threshold that declines at least {fewest} of "
                "the rows costs less."
            )
        return text
    if goal == Rates():
        return (
            "No cost and no rate was stated: about as many rows are reviewed as have "
            "the outcome, and no score declines."
        )
    share = "about as many rows as have the outcome"
    if goal.review is not None:
        share = f"at most {_percent(goal.review)} of the rows"
    most = f"the highest {_percent(goal.decline)}" if goal.decline else "none"
    text = f"Stated: review {share}, decline {most}."
    if goal.decline and thresholds.decline is None:
        rows = round(goal.decline * thresholds.rows)
        why = f"a threshold must decline at least {fewest}"
        if rows >= fewest:
            why = f"no threshold declines {fewest} to {rows:,}, since scores are equal"
        text += (
            f" No score declines: {_percent(goal.decline)} of {thresholds.rows:,} rows "
            f"are {rows:,}, and {why}."
        )
    return text


def _effect(decision: str, rows: int, *, found: int, of: int) -> str:
    """Describe the effect of a threshold on the rows that it was chosen on."""
    precision = f", {_percent(found / rows)}" if rows else ""
    return (
        f"{decision}: {rows:,} rows ({_percent(rows / of)}), {found:,} of "
        f"them positive{precision}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


ASK_FILE = "ask.py"


def ask_text(
    frame: pl.DataFrame,
    *,
    row: int,
    product: str,
    inputs: Mapping[str, str],
    fields: Mapping[str, str],
) -> str:
    """
    Write Python that sends one row and prints its decision.

    Args:
        frame: Rows under the product's names.
        row: Position of the row to send.
        product: Name of the product.
        inputs: Required inputs of each request: name -> type on the wire.
        fields: Optional inputs, likewise.
    """
    return render(
        "tollgate/product/templates/ask.py.j2",
        {
            "product": product,
            "script": ASK_FILE,
            "inputs": inputs,
            "fields": fields,
            "row": frame.row(row, named=True),
        },
    )


SCRIPT_FILE = "train.py"


def script_text(plan: Plan, *, kind: str) -> str:
    """
    Write train.py, which is next to the ensemble's configuration.

    Args:
        plan: The product.
        kind: Kind of the baseline.
    """
    choices = plan.choices
    return render(
        "tollgate/product/templates/train.py.j2",
        {
            "product": choices.product,
            "script": SCRIPT_FILE,
            "table": str(choices.table.resolve()),
            "label": choices.label,
            "positive": plan.label.positive,
            "label_delay_us": choices.label_delay_us,
            "sensitive": choices.sensitive,
            "kind": kind,
        },
    )


# Write the first features.yaml of a product.

# A value this many times beyond all that were seen counts as a mistake.
_BEYOND = 10
_MAX_NAME = 64  # characters in the name of a feature


def spec_text(
    plan: Plan,
    *,
    fields: tuple[Field, ...],
    missing: Mapping[str, float],
    windows: Sequence[WindowFeature],
    hops: Mapping[str, str],
) -> str:
    """
    Write features.yaml.

    Args:
        plan: The product.
        fields: Its fields in the order of the vector.
        missing: Substitute for a missing value, by field; NaN leaves it to the model.
        windows: Its features over windows.
        hops: The hop of each entity.
    """
    choices = plan.choices
    return render(
        "tollgate/product/templates/features.yaml.j2",
        {
            "product": choices.product,
            "table": choices.table.name,
            "amount": choices.amount,
            "time": choices.time,
            "at_night": plan.at_night,
            "aliases": plan.aliases,
            "entities": [
                {"name": one.name, "key": one.key, "hop": hops[one.name]}
                for one in plan.entities
            ],
            "fields": [_field(one, default=missing[one.name]) for one in fields],
            "windows": windows,
        },
    )


def _field(field: Field, *, default: float) -> dict[str, object]:
    """Return the values that the template needs of a field."""
    column = field.column
    values: dict[str, object] = {
        "name": field.name,
        "type": column.kind,
        "missing": column.missing,
    }
    if column.kind == "category":
        line = f"  - {{name: {field.name}, type: category, vocabulary: "
        line += yaml_list(column.words, indent=6) + "}"
        fits = len(line) <= WIDTH and "\n" not in line
        return {
            **values,
            "words": column.words,
            "on_one_line": fits,
            "left_to_model": math.isnan(default),
        }
    decimals = f", decimals: {decimals_text(column.decimals)}"
    low, high = bounds(column.low, column.high, decimals=column.decimals)
    return {
        **values,
        "decimals": decimals if column.decimals != 0 else "",
        "low": low,
        "high": high,
        "seen_low": column.low,
        "seen_high": column.high,
        "default": default,
        "left_to_model": math.isnan(default),
    }


def bounds(low: float, high: float, *, decimals: int | None) -> tuple[float, float]:
    """
    Return the range of valid numbers: up to ten times those that were seen.

    A number that was never below 0 must not be; a row with a number out of range is
    bad.
    """
    most = largest_number(decimals)
    least = 0.1**decimals if decimals is not None else float(low == high == 0)
    largest = max(abs(low), abs(high), least)
    wide = 10.0 ** math.ceil(math.log10(largest * _BEYOND) - 1e-9)
    wide = min(wide, most)
    return (0.0 if low >= 0 else -wide), (0.0 if high <= 0 else wide)


class WindowFeature(msgspec.Struct, frozen=True):
    """
    A feature over a window of an entity.

    Attributes:
        name: Its name.
        definition: Its other keys in features.yaml, without the default.
        default: Value of an id without history, and while the store is unavailable;
            None until it is computed from the training rows.
        origin: Origin of the default, for a comment.
    """

    name: str
    definition: str
    default: float | None
    origin: str = "an id without history"


def window_features(plan: Plan) -> list[WindowFeature]:
    """
    List the features over windows.

    The default of a count or a sum is 0; the last event is longer ago than the longest
    window. A mean, a minimum, a maximum or a last value of no events is undefined, so
    its default follows from the training rows.
    """
    always = ["count", "sum", "mean"] if plan.choices.amount else ["count"]
    taken = {one.name for one in plan.fields}
    found = []
    for entity in plan.entities:
        pairs = [(aggregate, AMOUNT) for aggregate in always]
        for number in entity.numbers:
            pairs += [(aggregate, number.name) for aggregate in number.aggregates]
        for aggregate, of in pairs:
            short = "" if of == AMOUNT else f"_{of}"
            source = "" if of == AMOUNT else f", of: {of}"
            found += [
                WindowFeature(
                    name=_free_name(
                        f"{entity.name}{short}_{aggregate}_{window}", taken
                    ),
                    definition=f"entity: {entity.name}, aggregate: {aggregate}"
                    f"{source}, window: {window}",
                    default=0.0 if aggregate in ("count", "sum") else None,
                )
                for window in entity.windows
            ]
        longest = entity.windows[-1]
        found.append(
            WindowFeature(
                name=_free_name(f"{entity.name}_since_last", taken),
                definition=f"time_since_last: {entity.name}, window: {longest}",
                default=duration_us(longest) / 1e6,
                origin=f"{longest}, the longest window",
            )
        )
    return found


def _free_name(name: str, taken: set[str]) -> str:
    """Return a valid name that is not taken, and add it to those that are."""
    numbered = (f"_w{number}" for number in itertools.count(2))
    for end in itertools.chain(("", "_w"), numbered):
        found = name[len(end) - _MAX_NAME :].lstrip("0123456789") + end
        if found not in taken:
            taken.add(found)
            return found
    raise AssertionError("the numbers ended")


# Stands for a default while the features of the training rows are computed: no mean, no
# largest and no last number of a table is that large.
_UNKNOWN = -(2.0**62)
_DIGITS = 6  # of a default


def fill_defaults(
    windows: Sequence[WindowFeature],
    vectors: npt.NDArray[np.float64],
    *,
    spec: FeatureSpec,
    train: npt.NDArray[np.bool_],
) -> list[WindowFeature]:
    """
    Compute the open defaults: the mean of the feature over the training rows.

    Args:
        windows: Features over windows.
        vectors: Vectors of the rows, in which the open defaults are `_UNKNOWN`; they
            get the computed ones; float64 [N, F].
        spec: The features of the vectors.
        train: The rows to train on; bool [N].
    """
    found = []
    for one in windows:
        if one.default is not None:
            found.append(one)
            continue
        column = vectors[:, spec.feature_names.index(one.name)]
        known = column[train & (column != _UNKNOWN)]
        default, origin = 0.0, "no training row has a value"
        if len(known):
            default = float(f"{known.mean():.{_DIGITS}g}")
            origin = f"the mean of {len(known):,} training rows"
        column[column == _UNKNOWN] = default
        found.append(msgspec.structs.replace(one, default=default, origin=origin))
    return found


def build_features(
    plan: Plan,
    folder: Path,
    *,
    fields: tuple[Field, ...],
    missing: Mapping[str, float],
) -> tuple[FeatureSpec, Rows, npt.NDArray[np.float32], tuple[HopChoice, ...]]:
    """
    Write features.yaml, and build the vectors of the table's rows.

    Args:
        plan: The product.
        folder: A model repository.
        fields: Fields of the product, in the order of the vector.
        missing: Substitute for a missing value, by field; NaN leaves it to the model.

    Returns:
        The features, the rows, their vectors (float32 [N, F]), and the hop of each
        entity.

    Raises:
        InputError: A value is invalid.
    """
    windows = window_features(plan)

    def write(hops: Mapping[str, str]) -> Path:
        return _write_spec(
            plan, folder, fields=fields, missing=missing, windows=windows, hops=hops
        )

    path = write({one.name: AUTO for one in plan.entities})
    rows = rows_of(
        plan.frame,
        spec=load_draft(path),
        positive=plan.label.positive,
        segments=plan.choices.sensitive,
        source=str(plan.choices.table),
        label_delay_us=plan.choices.label_delay_us,
    )
    spec, choices = resolve_hops(path, rows.history)
    vectors = build(spec, rows.history)
    if windows:
        train, _ = split(
            rows.history.label,
            time_us=rows.history.event_time_us,
            spec=spec,
            label_delay_us=plan.choices.label_delay_us,
        )
        windows = fill_defaults(windows, vectors, spec=spec, train=train)
        spec = load_spec(write({one.entity: one.hop for one in choices}))
    return spec, rows, vectors.astype(np.float32), choices


def write_texts(
    plan: Plan,
    folder: Path,
    *,
    spec: FeatureSpec,
    thresholds: Thresholds,
    kind: str,
    seen: bool,
    wide: bool,
) -> None:
    """
    Write all other files that a person may want to change, and the models' folders.

    Args:
        plan: The product.
        folder: A model repository.
        spec: The product's features.
        thresholds: Its thresholds.
        kind: Kind of model that train.py trains.
        seen: True if the model may have been trained on the rows of the thresholds.
        wide: True if the model takes the features as float64.
        outcomes: Words of its decisions.
    """
    product = plan.choices.product
    _, _, decision = step_names(product)
    texts = {
        **all_texts(spec, wide=wide, outcomes=plan.choices.outcomes),
        f"{decision}/1/{POLICY_FILE}": policy_text(plan, thresholds, seen=seen),
        f"{product}/{SLO_FILE}": slo_text(product),
        f"{product}/{SCRIPT_FILE}": script_text(plan, kind=kind),
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def _write_spec(
    plan: Plan,
    folder: Path,
    *,
    fields: tuple[Field, ...],
    missing: Mapping[str, float],
    windows: Sequence[WindowFeature],
    hops: Mapping[str, str],
) -> Path:
    """Write features.yaml; open defaults are `_UNKNOWN`."""
    step, _, _ = step_names(plan.choices.product)
    path = folder / step / "1" / SPEC_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    windows = [
        msgspec.structs.replace(one, default=_UNKNOWN) if one.default is None else one
        for one in windows
    ]
    text = spec_text(plan, fields=fields, missing=missing, windows=windows, hops=hops)
    path.write_text(text, "utf-8")
    return path
