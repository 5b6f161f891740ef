"""Hold the user's choices for a new product."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tollgate.product.thresholds import Goal, Rates
from tollgate.schema import DEFAULT_OUTCOMES, Outcomes

MOST_FIELDS = 256  # each field is a separate tensor in every request


class ProductChoices(msgspec.Struct, frozen=True, kw_only=True):
    """
    The user's choices for a table.

    Attributes:
        product: The new product's name.
        table: The file.
        label: Column of the outcomes.
        positive: The outcome that the score is the probability of; None chooses.
        entities: Columns with ids of entities that have windows.
        time: Column with the time of each row.
        amount: Column with money.
        id: Column with an id of each row.
        drop: Columns to leave out.
        sensitive: Columns to leave out, and to report the model's errors by.
        keep: Columns to use although they seem to give the outcome away.
        most_fields: Largest number of request fields.
        label_delay_us: Time from a row until its outcome is known, µs.
        goal: Criterion for the thresholds.
        outcomes: Words of the decisions.
    """

    product: str
    table: Path
    label: str
    positive: str | None = None
    entities: tuple[str, ...] = ()
    time: str | None = None
    amount: str | None = None
    id: str | None = None
    drop: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    most_fields: int = MOST_FIELDS
    label_delay_us: int = 0
    goal: Goal = Rates()
    outcomes: Outcomes = DEFAULT_OUTCOMES
