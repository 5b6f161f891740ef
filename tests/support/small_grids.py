"""Search smaller grids when a ranking is trained, so that tests are fast."""

from __future__ import annotations

import math

import pytest

from converters.ranking import rivals, training


def search_less(patch: pytest.MonkeyPatch) -> None:
    """Shorten every grid of the learnt ranking and of its rivals."""
    patch.setattr(training, "RIDGES", (1.0, 10.0))
    patch.setattr(training, "SIZES", (32,))
    patch.setattr(training, "HALF_LIVES", (5.0, math.inf))
    patch.setattr(training, "TREES", training.TREES[:1])
    patch.setattr(rivals, "NEIGHBOUR_COUNTS", (5, 20))
    patch.setattr(rivals, "ALS_FACTORS", (8,))
    patch.setattr(rivals, "ALS_ALPHAS", (1.0, 5.0))
