"""Read the store settings of a step from the parameters of its configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tollgate.errors import InputError
from tollgate.schema import (
    APPENDS,
    APPENDS_PARAMETER,
    BREAKER_CALLS_PARAMETER,
    BREAKER_FAILURES_PARAMETER,
    BREAKER_SHARE_PARAMETER,
    LAST_KNOWN_AGE_PARAMETER,
    LAST_KNOWN_SIZE_PARAMETER,
    STORE_DEADLINE_LIMIT_PARAMETER,
    STORE_DEADLINE_PARAMETER,
    STORE_PROBE_PARAMETER,
    TABLES_SIZE_PARAMETER,
    UPDATES,
    UPDATES_PARAMETER,
)
from tollgate.store.fallback.circuit_breaker import BreakerRules
from tollgate.store.store_opening import StoreSettings

_CONFIG = "config.pbtxt"
# Parameter of the step's configuration -> its unit in seconds or bytes, or 1.
_UNITS = {
    STORE_DEADLINE_PARAMETER: 1e-3,
    STORE_DEADLINE_LIMIT_PARAMETER: 1e-3,
    STORE_PROBE_PARAMETER: 1e-3,
    BREAKER_FAILURES_PARAMETER: 1.0,
    BREAKER_CALLS_PARAMETER: 1.0,
    BREAKER_SHARE_PARAMETER: 1.0,
    LAST_KNOWN_SIZE_PARAMETER: 1e6,
    TABLES_SIZE_PARAMETER: 1e6,
    LAST_KNOWN_AGE_PARAMETER: 1.0,
}
_COUNTS = (BREAKER_FAILURES_PARAMETER, BREAKER_CALLS_PARAMETER)


def store_settings(parameters: Mapping[str, str]) -> StoreSettings:
    """
    Read the store settings from a step's configuration.

    Raises:
        InputError: A parameter is no number, out of its range, or none of its allowed
            words.
    """
    defaults, breaker = StoreSettings(), BreakerRules()
    numbers = {
        name: _number(name, parameters[name]) * _UNITS[name]
        for name in parameters.keys() & _UNITS.keys()
    }
    updates = _word(UPDATES_PARAMETER, parameters, UPDATES)
    return StoreSettings(
        deadline_s=numbers.get(STORE_DEADLINE_PARAMETER, defaults.deadline_s),
        deadline_limit_s=numbers.get(
            STORE_DEADLINE_LIMIT_PARAMETER, defaults.deadline_limit_s
        ),
        breaker=BreakerRules(
            failures_in_a_row=round(
                numbers.get(BREAKER_FAILURES_PARAMETER, breaker.failures_in_a_row)
            ),
            recent_calls=round(
                numbers.get(BREAKER_CALLS_PARAMETER, breaker.recent_calls)
            ),
            failed_share=numbers.get(BREAKER_SHARE_PARAMETER, breaker.failed_share),
            probe_interval_s=numbers.get(
                STORE_PROBE_PARAMETER, breaker.probe_interval_s
            ),
        ),
        last_known_bytes=round(
            numbers.get(LAST_KNOWN_SIZE_PARAMETER, defaults.last_known_bytes)
        ),
        last_known_max_age_s=numbers.get(
            LAST_KNOWN_AGE_PARAMETER, defaults.last_known_max_age_s
        ),
        tables_bytes=round(numbers.get(TABLES_SIZE_PARAMETER, defaults.tables_bytes)),
        updates=updates != "stream",
        appends=_word(APPENDS_PARAMETER, parameters, APPENDS) != "off",
        marks=updates == "scoring",
    )


def _word(name: str, parameters: Mapping[str, str], words: Sequence[str]) -> str:
    """Read a parameter: one of some words, by default the first."""
    word = parameters.get(name, words[0])
    if word not in words:
        problem = f"{word!r} is none of {', '.join(words)}"
        raise InputError(_CONFIG, problem, where=name)
    return word


def _number(name: str, text: str) -> float:
    """Read a parameter: above zero, 1 at most for a share, an integer for a count."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(_CONFIG, f"{text!r} is no number above 0", where=name)
    if name in _COUNTS and value != round(value):
        raise InputError(_CONFIG, f"{text!r} is no whole number", where=name)
    if name == BREAKER_SHARE_PARAMETER and value > 1:
        raise InputError(_CONFIG, f"{text!r} is more than 1", where=name)
    return value
