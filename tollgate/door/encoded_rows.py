"""Have rows decided in this process, encoded and decoded as the client does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tollgate.door.products import DoorProduct
from tollgate.server.wire_tensors import Refused
from tollgate_client import InvalidRequest, Outcome
from tollgate_client.decisions import outcomes_of
from tollgate_client.errors import row_errors
from tollgate_client.inputs import Purchase, encode_purchase
from tollgate_client.wire import decisions_of, request_of

_TIME_LEFT_S = 60.0  # no queue in which time runs out


def decide_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    product: DoorProduct,
    dry_run: bool,
    infer: Callable[[bytes], bytes],
) -> list[Outcome]:
    """
    Decide at most 32 rows.

    Args:
        infer: Answers an encoded ModelInferRequest; Refused for one whose rows are all
            bad.

    Raises:
        ClientError: The answer is none that this product gives.
    """
    checked: list[Purchase | InvalidRequest] = []
    for row in rows:
        try:
            checked.append(
                encode_purchase(row, inputs=product.inputs, fields=product.fields)
            )
        except InvalidRequest as error:
            checked.append(error)
    good = [one for one in checked if not isinstance(one, InvalidRequest)]
    answers = iter(_answers(good, product, dry_run, infer) if good else ())
    return [
        one if isinstance(one, InvalidRequest) else next(answers) for one in checked
    ]


def _answers(
    rows: Sequence[Purchase],
    product: DoorProduct,
    dry_run: bool,
    infer: Callable[[bytes], bytes],
) -> list[Outcome]:
    request = request_of(
        rows, product=product.name, kinds=product.kinds, dry_run=dry_run
    )
    try:
        response = infer(request.encode(left_s=_TIME_LEFT_S))
    except Refused as refused:
        _, _, lines = str(refused).partition(", ")
        errors = row_errors(lines, rows=len(rows)) or [str(refused)] * len(rows)
        return [InvalidRequest(error) for error in errors]
    decisions = decisions_of(response, latency_s=0.0)
    found: list[Outcome] = []
    for one in outcomes_of(decisions, rows=len(rows), words=product.outcomes):
        if isinstance(one, Exception) and not isinstance(one, InvalidRequest):
            raise one
        found.append(one)
    return found
