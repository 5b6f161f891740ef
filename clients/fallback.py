"""What is decided when no server answers in time: a rule, declared as data."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from clients.decision import WORDS
from tollgate.errors import InputError

_SOURCE = "fallback"


class Band(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Purchases up to an amount.

    Attributes:
        below: Amounts under this; in the product's currency, above 0.
        decision: `approve`, `review` or `decline`.
    """

    below: float
    decision: str


class Fallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A decision by amount alone: the first band that the amount lies below.

        Fallback(bands=(Band(below=50, decision="approve"),), otherwise="review")

    Attributes:
        otherwise: For all that no band takes.
        bands: In ascending order of `below`.

    Raises:
        InputError: A word is no decision, or the bands are not ascending; names the
            band.
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
        """Decide for an amount."""
        for band in self.bands:
            if amount < band.below:
                return band.decision
        return self.otherwise


def fallback_from(document: Mapping[str, object]) -> Fallback:
    """
    Read a rule out of a configuration, such as a part of a YAML file.

        {"bands": [{"below": 50, "decision": "approve"}], "otherwise": "review"}

    Raises:
        InputError: As `Fallback`; or a key is missing, unknown or of a wrong type.
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
