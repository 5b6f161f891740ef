"""Write the outcome of each row as JSON, with reasons and degraded bits in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tollgate.door.json_rows import field_of
from tollgate.door.products import DoorProduct
from tollgate.door.refusal import RowError
from tollgate.schema import TRANSACTION_ID, Degraded

if TYPE_CHECKING:
    from tollgate_client import Decision


class RowAnswer(msgspec.Struct, frozen=True, gc=False):
    """
    The decision of one row.

    Attributes:
        transaction_id: The row's own id.
        decision: One of the product's words.
        score: 0 to 1; None if the model gave none, or no model decided.
        reasons: Sentences for a person, one for each code.
        reason_codes: Codes of the policy.
        degraded: Names of the degraded bits; docs/contract.md.
        release: Release that decided; empty for a fallback.
        source: `model`, `cached` or `fallback`; docs/clients.md.
        why: Reason why no model decided just now; empty when one did.
    """

    transaction_id: str
    decision: str
    score: float | None
    reasons: list[str]
    reason_codes: tuple[str, ...]
    degraded: list[str]
    release: str
    source: str
    why: str


class RefusedRow(msgspec.Struct, frozen=True):
    """A row without a decision, among others that have one."""

    transaction_id: str | None
    error: RowError


def row_answer(
    row: Mapping[str, Any], decision: Decision, product: DoorProduct
) -> RowAnswer:
    """Write the decision of one row."""
    codes = decision.reason_codes
    return RowAnswer(
        transaction_id=row[TRANSACTION_ID],
        decision=decision.decision,
        score=None if math.isnan(decision.score) else decision.score,
        reasons=[product.reasons.get(code, code) for code in codes],
        reason_codes=codes,
        degraded=degraded_names(decision.degraded),
        release=decision.release,
        source=decision.source,
        why=decision.why,
    )


def degraded_names(bits: int) -> list[str]:
    """List the names of degraded bits; a bit of a newer server has its number."""
    if not bits:
        return []
    return [
        _NAMES.get(1 << bit, f"BIT_{bit}")
        for bit in range(bits.bit_length())
        if bits >> bit & 1
    ]


_NAMES = {int(one): str(one.name) for one in Degraded}


def row_error(index: int, message: str, product: DoorProduct) -> RowError:
    """Describe a row's mistake, as the client or the server found it."""
    return RowError(
        index, field_of(message, (*product.inputs, *product.fields)), message
    )


def refused_row(row: object, error: RowError) -> RefusedRow:
    """Describe a row that is refused, with its id where it has one."""
    found = row.get(TRANSACTION_ID) if isinstance(row, Mapping) else None
    return RefusedRow(found if isinstance(found, str) else None, error)
