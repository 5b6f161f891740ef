"""
Describe a model so that its scores can be explained: the content of explain.npz.

A description that a source gives is used only if its sums reproduce the source's own
probabilities.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from converters.model import F32, Facts, TrainedModel
from converters.parity.parity import Reference, ask
from tollgate.errors import ConversionError
from tollgate.explanation import Explainer, Explanation, encoded
from tollgate.explanation.explanation_file import unexplained

CHECKED_ROWS = 8192  # of the proof's rows, evenly spaced
TOLERANCE = 1e-5  # of a probability: XGBoost and linear models predict in float32


def explain(
    model: TrainedModel,
    *,
    names: tuple[str, ...],
    samples: F32 | None,
    reference: Reference | None = None,
) -> Explanation:
    """
    Return a model's additive explanation, or the reason why there is none.

    Args:
        model: The source that was converted.
        names: Names of its features, as served.
        samples: Rows as served. A linear model's contributions are measured from their
            mean; without rows, from 0.
        reference: The model's predictions for the rows that it is proven on; None
            computes them.
    """
    found = msgspec.structs.replace(model.explanation(), features=names)
    if found.reason:
        return found
    if reference is None:
        reference = ask(model.predict, model.probes(samples), number=model.facts.number)
    delta = _difference(found, reference)
    if delta > TOLERANCE:
        return unexplained(
            f"what it adds up to is {delta:.2g} off its probabilities",
            features=names,
            classes=found.classes,
        )
    return found if samples is None else _from_mean(found, samples)


def explained(make: Callable[[], Explanation], *, facts: Facts) -> Explanation:
    """Return the description that `make` builds; the reason if it refuses."""
    try:
        return make()
    except ConversionError as error:
        return unexplained(
            " ".join(str(error).split()),
            features=facts.feature_names,
            classes=facts.classes,
        )


def explained_number(facts: Facts) -> Explanation:
    """Return the reason why a number has no explanation."""
    return unexplained(
        "the answer is a number, and contributions are those to a probability",
        features=facts.feature_names,
        classes=(0, 1),
    )


def _difference(found: Explanation, reference: Reference) -> float:
    """Return the largest absolute difference."""
    count = len(reference.rows)
    at = np.linspace(0, count - 1, min(count, CHECKED_ROWS)).astype(int)
    with np.errstate(all="ignore"):
        sums = Explainer(found).probabilities(reference.rows[at])
        delta = np.abs(reference.probabilities[at] - sums)
    # NaN where the source has a value counts as the largest possible error.
    return float(np.nan_to_num(delta, nan=1.0).max(initial=0.0))


def _from_mean(found: Explanation, samples: F32) -> Explanation:
    """Measure a linear model's contributions from the mean of its columns."""
    if found.linear is None:
        return found
    columns = encoded(found.linear, samples)
    columns = columns[np.isfinite(columns).all(axis=1)]
    if not len(columns):
        return found
    linear = msgspec.structs.replace(
        found.linear, mean=columns.mean(axis=0), from_mean=True
    )
    return msgspec.structs.replace(found, linear=linear)
