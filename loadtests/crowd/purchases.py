"""Endless synthetic purchases, generated while users send requests."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from loadtests.made_up import synthetic_purchases
from loadtests.paced.requests import poison_rows, shift_late
from loadtests.paced.scenario import Scenario
from tollgate.errors import InputError
from tollgate.features.definition import FeatureSpec
from tollgate.schema import AMOUNT

_AT_ONCE = 256  # rows drawn at once: a millisecond that no user waits for
_OLD_S = 5.0  # age of the newest: not ahead of any clock


class Purchases:
    """
    Generator of the purchases of one product, as a scenario has them.

    Args:
        spec: Feature spec; says what its requests contain.
        scenario: Says which rows break a rule, and when the purchases shift.
        seed: Seed of the draws; each seed gives new ids.

    Raises:
        InputError: The product has no input that the scenario could change.
    """

    def __init__(self, spec: FeatureSpec, scenario: Scenario, *, seed: int) -> None:
        if (scenario.poison or scenario.shift) and AMOUNT not in spec.columns:
            problem = f"{spec.product} has no amount that it could change"
            raise InputError("--scenario", problem)
        self._spec, self._scenario = spec, scenario
        self._chance = np.random.default_rng(seed)
        self._columns: dict[str, Any] = {}
        self._bad = np.zeros(0, np.bool_)
        self._next = 0

    def take(self, rows: int, *, at_s: float) -> tuple[dict[str, Any], int]:
        """
        Take the next purchases.

        Args:
            rows: 1 to 32.
            at_s: Time from the beginning of the scenario, s.

        Returns:
            Columns of a request, and how many of its rows break a rule.
        """
        if self._next + rows > len(self._bad):
            self._draw(at_s)
        part = slice(self._next, self._next + rows)
        self._next += rows
        columns = {name: column[part] for name, column in self._columns.items()}
        return columns, int(self._bad[part].sum())

    def _draw(self, at_s: float) -> None:
        scenario, chance = self._scenario, self._chance
        first_us = round((time.time() - _OLD_S) * 1e6) - _AT_ONCE * 1_000
        seed = int(chance.integers(2**31))
        drawn = synthetic_purchases(self._spec, _AT_ONCE, seed=seed, first_us=first_us)
        columns = {name: np.asarray(column) for name, column in drawn.items()}
        if scenario.shift is not None:
            late = np.full(_AT_ONCE, at_s >= scenario.shift.at_s)
            shift_late(columns, scenario.shift, late, chance)
        self._bad = chance.random(_AT_ONCE) < scenario.poison
        if self._bad.any():
            poison_rows(columns, np.flatnonzero(self._bad))
        self._columns, self._next = columns, 0
