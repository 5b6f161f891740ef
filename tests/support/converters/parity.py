"""Compare a trained model with its converted one on probe rows, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.model import F32, Probes
from converters.parity.parity import Comparison, ask, judge
from converters.parity.runner import Runner
from tollgate.repository.models.artifact_file import ParityReport


def compare(
    source: Callable[[F32], npt.NDArray[np.floating[Any]]],
    converted: Runner,
    *,
    probes: Probes,
    thresholds: Sequence[float],
) -> ParityReport:
    """Compare two models as `measure` does; return only the report."""
    return measure(source, converted, probes=probes, thresholds=thresholds).report


def measure(
    source: Callable[[F32], npt.NDArray[np.floating[Any]]],
    converted: Runner,
    *,
    probes: Probes,
    thresholds: Sequence[float],
) -> Comparison:
    """
    Compare two models on probe rows: `ask`, then `judge`.

    Args:
        source: The trained model; features [N, F] to probabilities [N, K], NaN in
            rows that it refuses.
        converted: The converted model, in some runtime.
        probes: Rows, at least one of which the source predicts.
        thresholds: Scores at which a decision changes, `score >= threshold`.

    Raises:
        ConversionError: The source predicts no row, or has another number of classes.
    """
    return judge(ask(source, probes), converted, thresholds=thresholds)
