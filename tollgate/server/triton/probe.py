"""Probe a complete product with dry-run requests before it is reported ready."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate import schema
from tollgate.errors import ServerError
from tollgate.server.triton.control import Reachable, infer, model_config, open_client

ROWS = (1, 8, 32)
AMOUNT = 10.0
ITEMS = 10  # of a product that ranks, in each list
_NUMBER = 10  # value of every other number
_TIMEOUT_S = 10.0  # the first request of a step may be slow
_NUMPY = {
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT32": np.uint32,
    "TYPE_BOOL": np.bool_,
}


class Probe(msgspec.Struct, frozen=True):
    """The result of probes: the release that answered and its degraded bits."""

    release: str
    degraded: schema.Degraded


def probe(server: Reachable, product: str, *, rows: Sequence[int] = ROWS) -> Probe:
    """
    Request decisions on synthetic purchases; dry runs, which write nothing.

    Args:
        rows: Sizes of the requests to send; those above its maximum are left out.

    Raises:
        ServerError: It refused, or a row came back with an error or no decision.
    """
    config = model_config(server, product)
    largest = int(config.get("max_batch_size", 0))
    degraded = schema.Degraded(0)
    release = ""
    for count in (n for n in rows if n <= largest):
        answer = _ask(server, config, count=count)
        _require_decisions(product, answer, count=count)
        degraded |= schema.Degraded(int(np.bitwise_or.reduce(answer["degraded"])))
        release = _text(answer["release"][0])
    return Probe(release=release, degraded=degraded)


def ask_once(server: Reachable, product: str, *, timeout_s: float) -> str:
    """
    Request a dry run of a synthetic purchase; return the release that decided.

    Raises:
        ServerError: No answer in time, or one that is no decision.
    """
    prober = Prober(server, product)
    try:
        return prober.ask(timeout_s=timeout_s)
    finally:
        prober.close()


class Prober:
    """
    Request decisions from a product again and again, over one connection.

    The connection and the ensemble's configuration stay until a request fails. No
    release changes the inputs of a product that is loaded.
    """

    def __init__(self, server: Reachable, product: str) -> None:
        self._server = server
        self._product = product
        self._client: Any = None
        self._config: dict[str, Any] = {}

    def ask(self, *, timeout_s: float, amount: float = AMOUNT) -> str:
        """
        Request a dry run of a synthetic purchase; return the release that decided.

        Args:
            amount: Amount of the purchase, whole cents.

        Raises:
            ServerError: No answer in time, or one that is no decision.
        """
        try:
            if self._client is None:
                self._client = open_client(self._server)
                self._config = model_config(
                    self._server,
                    self._product,
                    timeout_s=timeout_s,
                    over=self._client,
                )
            answer = _ask(
                self._server,
                self._config,
                count=1,
                timeout_s=timeout_s,
                amount=amount,
                over=self._client,
            )
            _require_decisions(self._product, answer, count=1)
        except BaseException:
            self.close()
            raise
        return _text(answer["release"][0])

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def probe_columns(
    config: dict[str, Any], *, count: int, now_us: int, amount: float = AMOUNT
) -> dict[str, npt.NDArray[Any]]:
    """
    Build values for the required inputs of an ensemble.

    Args:
        now_us: Event time of every row, µs since the epoch.
        amount: Amount of every row, whole cents.

    Returns:
        Input name to array [count, …dims].
    """
    known = {schema.EVENT_TIME: now_us, schema.AMOUNT: amount}
    columns: dict[str, npt.NDArray[Any]] = {}
    for tensor in config["input"]:
        if tensor.get("optional"):
            continue
        name, kind = tensor["name"], tensor["data_type"]
        shape = [count, *(max(int(size), 1) for size in tensor["dims"])]
        if kind == "TYPE_STRING":
            values = [f"probe-{name}-{row}".encode() for row in range(count)]
            column = np.array(values, dtype=np.object_).reshape(
                count, *[1] * (len(shape) - 1)
            )
            columns[name] = np.broadcast_to(column, shape)
            continue
        columns[name] = np.full(shape, known.get(name, _NUMBER), dtype=_NUMPY[kind])
    return columns


def _ask(
    server: Reachable,
    config: dict[str, Any],
    *,
    count: int,
    timeout_s: float = _TIMEOUT_S,
    amount: float = AMOUNT,
    over: Any = None,
) -> dict[str, npt.NDArray[Any]]:
    now_us = time.time_ns() // 1000
    columns = probe_columns(config, count=count, now_us=now_us, amount=amount)
    ranks = schema.LIST_OUTPUTS[0] in {one["name"] for one in config["output"]}
    parameters: dict[str, bool | int] = {schema.DRY_RUN: True}
    if ranks:
        parameters[schema.LIST_SIZE] = ITEMS
    answer = infer(
        server,
        config["name"],
        inputs=columns,
        parameters=parameters,
        timeout_s=timeout_s,
        over=over,
    )
    expected = schema.RANKED_TYPES if ranks else schema.ANSWER_TYPES
    missing = [name for name in expected if name not in answer]
    if missing:
        raise ServerError(
            config["name"], f"the probe's answer lacks the output {missing[0]}"
        )
    return {
        name: answer[name] if name in schema.LIST_OUTPUTS else answer[name].reshape(-1)
        for name in expected
    }


def _require_decisions(
    product: str, answer: dict[str, npt.NDArray[Any]], *, count: int
) -> None:
    for name, values in answer.items():
        if len(values) != count:
            raise ServerError(
                product, f"{name} has {len(values)} rows for a probe of {count}"
            )
    if "decision" in answer:
        words, lacking = answer["decision"], "the decision is empty"
    else:
        # Any number of items may be in stock, even none.
        items = answer["items"]
        if items.ndim != 2 or not 1 <= items.shape[1] <= ITEMS:
            problem = f"items has shape {list(items.shape)} for lists of {ITEMS}"
            raise ServerError(product, f"probe of {count} rows: {problem}")
        words, lacking = answer["release"], "the release is empty"
    for row, (error, word) in enumerate(
        zip(map(_text, answer["error"]), map(_text, words), strict=True)
    ):
        if error or not word:
            what = error or lacking
            raise ServerError(product, f"probe of {count} rows, row {row}: {what}")


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
