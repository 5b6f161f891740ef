"""Serve a new product before it is in its repository, and decide held-out rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.cli.replaying import LOAD_DEADLINE_S, replay_newest
from tollgate.cli.wire import field_columns, wire_fields
from tollgate.errors import ServerError
from tollgate.features.wire import wire_inputs
from tollgate.schema import Degraded

if TYPE_CHECKING:
    from clients.decisions import Decisions
    from tollgate.features.spec import FeatureSpec
    from tollgate.product.rows import Rows
    from tollgate.server.embedded import Embedded

I64 = npt.NDArray[np.int64]

_MAX_ROWS = 1_000  # number of rows to decide without windows
_MAX_ROWS_WITH_WINDOWS = 128  # with windows, each row waits for the ones before it
_TIMEOUT_S = 10.0
# The tolerance of a conversion's proof: one float32 against the framework's score.
_TOLERANCE = 1e-5
_STORE_DEADLINE_MS = 1_000  # a slow moment of this machine must not change a score
# Bits of rows scored on other values than the table's: the store missed even this
# deadline.
_OTHER_VALUES = np.uint32(Degraded.STORE_UNAVAILABLE | Degraded.LAST_KNOWN_VECTOR)


class ServingTrial(msgspec.Struct, frozen=True, eq=False):
    """
    Decisions of a server on held-out rows.

    Attributes:
        rows: Their positions; int [K].
        answers: Decision of each.
        label: Their true outcomes; int8 [K].
        largest_difference: The greatest difference of a score from the model's own.
        compared: Number of scores in that comparison; the other rows are degraded.
        replayed: Number of purchases whose online vectors were compared with the
            offline ones.
    """

    rows: I64
    answers: Decisions
    label: npt.NDArray[np.int8]
    largest_difference: float
    compared: int
    replayed: int


def run_serving_trial(
    repository: Path,
    *,
    spec: FeatureSpec,
    rows: Rows,
    test: I64,
    score: npt.NDArray[np.float64],
    state: Path,
) -> ServingTrial:
    """
    Serve a product on this machine for a moment, and decide held-out rows.

    Args:
        repository: Repository that contains the product.
        spec: Its features.
        rows: All rows.
        test: Held-out rows; positions [T].
        score: The source's own scores of these; float64 [T].
        state: A folder for the server.

    Raises:
        ServerError: It does not start, or its scores differ from the model's.
    """
    from tollgate.server.embedded import serve

    at = _select_rows(rows, test, timed=bool(spec.entities))
    with serve(repository, products=(spec.product,), state=state) as server:
        order, answers = _answers(test[at], spec=spec, rows=rows, server=server)
    replayed = replay_newest(spec, rows.history) if spec.entities else 0
    picked, wanted = test[at][order], score[at[order]]
    _require_answers(answers, spec.product)
    comparable = (answers.degraded & _OTHER_VALUES) == 0
    if not comparable.any():
        problem = f"all of {len(comparable)} rows were degraded: none can be compared"
        raise ServerError(spec.product, problem)
    difference = np.where(comparable, np.abs(answers.score - wanted), 0.0)
    largest_difference = float(difference.max())
    if not largest_difference <= _TOLERANCE:
        wrong = ~(difference <= _TOLERANCE)
        row = int(np.argmax(wrong))
        problem = (
            f"{int(wrong.sum())} of {int(comparable.sum())} served scores "
            f"are not the source's; the first, of row {picked[row] + 1}: "
            f"{answers.score[row]:.9g}, the source says {wanted[row]:.9g}"
        )
        raise ServerError(spec.product, problem)
    label = rows.history.label[picked]
    return ServingTrial(
        picked, answers, label, largest_difference, int(comparable.sum()), replayed
    )


def _answers(
    picked: I64, *, spec: FeatureSpec, rows: Rows, server: Embedded
) -> tuple[I64, Decisions]:
    """Decide rows; return the order in which they were sent, and their decisions."""
    from clients.client import Client
    from clients.decisions import join

    positions: list[I64] = []
    parts: list[Decisions] = []
    fields = wire_fields(spec, rows.frame)
    with Client(
        server.grpc_url,
        product=spec.product,
        inputs=wire_inputs(spec),
        fields=fields,
        timeout_s=_TIMEOUT_S,
        store_deadline_ms=_STORE_DEADLINE_MS,
    ) as client:
        for batch in _in_time_order(
            picked, spec=spec, rows=rows, store_url=server.store_url
        ):
            positions.append(batch)
            columns = _request(picked[batch], spec=spec, rows=rows, fields=fields)
            parts += client.decide_many(columns, in_flight=1)
    return np.concatenate(positions), join(parts)


def _select_rows(rows: Rows, test: I64, *, timed: bool) -> I64:
    """Select the last held-out rows in time, or some of each outcome, by position."""
    if timed:
        order = np.lexsort((test, rows.history.event_time_us[test]))
        return np.asarray(order[-_MAX_ROWS_WITH_WINDOWS:], np.int64)
    label = rows.history.label[test]
    half = _MAX_ROWS // 2
    parts = [np.flatnonzero(label == outcome)[:half] for outcome in (1, 0)]
    return np.concatenate(parts)


def _in_time_order(
    picked: I64, *, spec: FeatureSpec, rows: Rows, store_url: str
) -> Iterator[I64]:
    """
    Yield the next picked rows to send; positions among them.

    Earlier events of their entities are in the store by then.
    """
    from tollgate.replay import purchases_of, spans
    from tollgate.store.cluster import open_store
    from tollgate.store.online import OnlineFeatures

    if not spec.entities:
        yield np.arange(len(picked))
        return
    history = rows.history
    concerned = np.zeros(len(history), np.bool_)
    for ids in history.entity_id.values():
        wanted = {ids[row] for row in picked}
        concerned |= np.fromiter((one in wanted for one in ids), np.bool_, len(ids))
    concerned &= history.event_time_us <= history.event_time_us[picked].max()
    known = np.flatnonzero(concerned)
    place = {row: at for at, row in enumerate(picked.tolist())}
    online = OnlineFeatures(spec, open_store(store_url, deadline_s=LOAD_DEADLINE_S))
    for span in spans(spec, history.take(known)):
        found = known[span.purchases]
        is_picked = np.isin(found, picked)
        online.load(purchases_of(spec, history, found[~is_picked]))
        if is_picked.any():
            yield np.array([place[row] for row in found[is_picked].tolist()])


def _request(
    picked: I64, *, spec: FeatureSpec, rows: Rows, fields: dict[str, str]
) -> dict[str, Any]:
    """
    Build the columns of a request; rows without a time are decided at the current time.
    """
    frame = rows.frame[picked]
    columns: dict[str, Any] = dict(
        field_columns(frame, fields, errors=[""] * len(frame))
    )
    now_us = int(time.time() * 1e6)
    for name in spec.columns:
        there = name in frame.columns
        columns[name] = frame[name].to_list() if there else [now_us] * len(frame)
    return columns


def _require_answers(answers: Decisions, product: str) -> None:
    bad = [text for text in answers.error.tolist() if text]
    if bad:
        problem = f"{len(bad)} of {len(answers)} rows were refused: {bad[0]}"
        raise ServerError(product, problem)
