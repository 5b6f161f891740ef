"""Write the outcome of each row as JSON, with reasons and degraded bits in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tollgate.door.json_rows import JsonRows, field_of
from tollgate.door.products import DoorProduct
from tollgate.door.refusal import Refusal, RowError
from tollgate.schema import LIST_SIZE, REQUEST_ID, TRANSACTION_ID, Degraded
from tollgate_client import (
    InvalidRequest,
    Outcome,
    RecommendationOutcome,
    Recommendations,
)
from tollgate_client.recommendations import CLIENT

if TYPE_CHECKING:
    from tollgate_client import Decision

_MODEL, _FALLBACK = "model", "fallback"


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


class ListItem(msgspec.Struct, frozen=True, gc=False):
    """
    An item of a list.

    Attributes:
        item: Its id.
        score: Relevance; None if no model scored it.
        source: `personal`, `similar`, `popular` or `fallback`; docs/ranking.md.
    """

    item: str
    score: float | None
    source: str


class ListAnswer(msgspec.Struct, frozen=True):
    """
    The list of items of one row, the best first.

    Attributes:
        request_id: The row's own id.
        items: The items; fewer than requested only where there are no more.
        degraded: Names of the degraded bits; docs/contract.md.
        release: Release that ranked; empty for a list of the door.
        source: `model`, or `fallback` if no server ranked and all items are popular
            ones that the door knows.
        why: Reason why the door added items of its own; empty if it added none.
    """

    request_id: str
    items: list[ListItem]
    degraded: list[str]
    release: str
    source: str
    why: str


class RefusedList(msgspec.Struct, frozen=True):
    """A row without a list, among others that have one."""

    request_id: str | None
    error: RowError


class RefusedRow(msgspec.Struct, frozen=True):
    """A row without a decision, among others that have one."""

    transaction_id: str | None
    error: RowError


def in_order(
    parsed: JsonRows, outcomes: Sequence[Outcome | RecommendationOutcome]
) -> list[Outcome | RecommendationOutcome]:
    """
    Put the outcomes of the usable rows, and the errors of the others, in order.

    Args:
        outcomes: Those of `parsed.usable`.
    """
    following = iter(outcomes)
    return [
        InvalidRequest(row) if isinstance(row, str) else next(following)
        for row in parsed.rows
    ]


def rows_answer(
    parsed: JsonRows,
    outcomes: Sequence[Outcome | RecommendationOutcome],
    product: DoorProduct,
) -> object:
    """
    Write the outcomes of all rows: one object, or a list as in the request.

    Raises:
        Refusal: Every row is wrong.
    """
    answers: list[object] = []
    errors: list[RowError] = []
    for index, (row, outcome) in enumerate(zip(parsed.rows, outcomes, strict=True)):
        if isinstance(outcome, InvalidRequest):
            error = row_error(index, str(outcome), product)
            errors.append(error)
            answers.append(refused_row(row, error, product))
            continue
        assert not isinstance(row, str)
        if isinstance(outcome, Recommendations):
            answers.append(list_answer(row, outcome))
        else:
            answers.append(row_answer(row, outcome, product))
    if len(errors) == len(answers):
        detail = errors[0].message
        if not parsed.alone:
            detail = f"all {len(errors)} rows are wrong; the first: {detail}"
        raise Refusal(422, detail, rows=tuple(errors))
    return answers[0] if parsed.alone else answers


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


def list_answer(row: Mapping[str, Any], found: Recommendations) -> ListAnswer:
    """Write the list of one row."""
    columns = zip(found.items, found.scores, found.sources, strict=True)
    return ListAnswer(
        request_id=row[REQUEST_ID],
        items=[
            ListItem(
                item,
                None if math.isnan(score) else score,
                _FALLBACK if source == CLIENT else source,
            )
            for item, score, source in columns
        ],
        degraded=degraded_names(found.degraded),
        release=found.release,
        source=source_of(found),
        why=found.why,
    )


def source_of(outcome: Decision | Recommendations) -> str:
    """Return where an answer comes from: `model`, `cached` or `fallback`."""
    if isinstance(outcome, Recommendations):
        return _FALLBACK if outcome.source_of_list == CLIENT else _MODEL
    return outcome.source


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
    known = (*product.inputs, *product.fields)
    if product.ranking is not None:
        known += (LIST_SIZE,)
    return RowError(index, field_of(message, known), message)


def refused_row(
    row: object, error: RowError, product: DoorProduct
) -> RefusedRow | RefusedList:
    """Describe a row that is refused, with its id where it has one."""
    found = row.get(product.id_name) if isinstance(row, Mapping) else None
    name = found if isinstance(found, str) else None
    if product.ranking is not None:
        return RefusedList(name, error)
    return RefusedRow(name, error)
