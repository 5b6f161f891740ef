"""Declare the rule that decides when no server responds in time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from tollgate.errors import InputError
from tollgate_client.decision import WORDS

_SOURCE = "fallback"


class Band(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Decision for purchases below an amount.

    Attributes:
        below: Upper bound of the amount, exclusive; in the product's currency, above 0.
        decision: `approve`, `review` or `decline`.
    """

    below: float
    decision: str


class Fallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Decide by amount alone: the first band whose bound the amount lies below.

        Fallback(bands=(Band(below=50, decision="approve"),), otherwise="review")

    Attributes:
        otherwise: Decision for all purchases that no band covers.
        bands: Bands in ascending order of `below`.

    Raises:
        InputError: A word is no decision, or the bands are not ascending; the error
            names the band.
    """

    otherwise: str
    bands: tuple[Band, ...] = ()

    def __post_init__(self) -> None:
        _check_word(self.otherwise, where="otherwise")
        last = 0.0
        for place, band in enumerate(self.bands):
            where = f"bands[{place}]"
            _check_word(band.decision, where=f"{where}.decision")
            if not last < band.below < math.inf:
                raise InputError(
                    _SOURCE,
                    f"{band.below!r} is not above {last:g}; bands ascend",
                    where=f"{where}.below",
                )
            last = band.below

    def decide(self, amount: float) -> str:
        """Return the decision for an amount."""
        for band in self.bands:
            if amount < band.below:
                return band.decision
        return self.otherwise


def fallback_from(document: Mapping[str, object]) -> Fallback:
    """
    Read a rule from a configuration, such as a section of a YAML file.

        {"bands": [{"below": 50, "decision": "approve"}], "otherwise": "review"}

    Raises:
        InputError: See `Fallback`; also if a key is missing, unknown or of a wrong
            type.
    """
    try:
        return msgspec.convert(dict(document), Fallback)
    except msgspec.ValidationError as error:
        raise InputError(_SOURCE, str(error)) from error


def _check_word(word: str, *, where: str) -> None:
    if word not in WORDS:
        raise InputError(
            _SOURCE, f"{word!r} is none of {', '.join(WORDS)}", where=where
        )
