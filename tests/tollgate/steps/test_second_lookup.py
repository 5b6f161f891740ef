"""Requests that let the store take longer: answered later, on what the store has."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.steps.in_process_steps import NOW_US, arguments, bought, request, use
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import CONTEXT, FEATURES, Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.steps.feature_step import FeatureStep
from tollgate.steps.store_parameters import store_settings
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases

HOUR_US = 3_600_000_000
PATIENCE_S = 600.0
LOST = Degraded.STORE_UNAVAILABLE | Degraded.LOOKUPS_UNREAD
FINAL = 1


class Sender:
    """Takes the answer to one request, in the place of Triton's."""

    def __init__(self) -> None:
        self._answers: queue.Queue[tuple[Any, int]] = queue.Queue()

    def send(self, response: Any, flags: int) -> None:
        """Take it."""
        self._answers.put((response, flags))

    def answer(self) -> Any:
        """Wait for the one answer."""
        response, flags = self._answers.get(timeout=PATIENCE_S)
        assert flags == FINAL
        return response

    @property
    def silent(self) -> bool:
        """Whether nothing was sent."""
        return self._answers.empty()


class Patient:
    """A request that can be answered after its batch was."""

    def __init__(self, *rows: tuple[Any, ...], **parameters: object) -> None:
        self._request = request(*rows, **parameters)
        self.sender = Sender()
        self.inputs, self.parameters = self._request.inputs, self._request.parameters

    def get_response_sender(self) -> Sender:
        """Give what answers it."""
        return self.sender


class Paused:
    """A real Redis that answers nothing until it goes on."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self._pid = server.pid

    def __enter__(self) -> Paused:
        os.kill(self._pid, signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()

    def go_on(self) -> None:
        """Let it answer."""
        os.kill(self._pid, signal.SIGCONT)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis of the test's own."""
    with EmbeddedRedis(tmp_path) as one:
        yield one


@pytest.fixture
def seeded(server: EmbeddedRedis, spec: FeatureSpec) -> EmbeddedRedis:
    """Customer c bought for 10, 20 and 30 in the last three hours, says another."""
    online = OnlineFeatures(spec, RedisStore(server.url, deadline_s=30.0))
    online.load(
        Purchases(
            transaction_id=[b"e1", b"e2", b"e3"],
            entity_id=[[b"c"] * 3, [b"m"] * 3],
            event_time_us=NOW_US - HOUR_US * np.array([3, 2, 1]),
            cents=np.array([1_000, 2_000, 3_000]),
        )
    )
    return server


@pytest.fixture
def open_step(
    seeded: EmbeddedRedis, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., FeatureStep]]:
    """Start feature steps over it; they end after the test."""
    use(monkeypatch, store_url=seeded.url, journal_url="")
    steps = []

    def open_(**parameters: str) -> FeatureStep:
        step = FeatureStep()
        step.initialize(arguments(spec_path.parent, parameters))
        steps.append(step)
        return step

    yield open_
    for step in steps:
        step.finalize()


def read(step: FeatureStep, spec: FeatureSpec, response: Any) -> list[dict[str, Any]]:
    """Take the rows of an answer: features by name, and degraded bits."""
    tensors = {one.called: one.array for one in response.tensors}
    context = np.ascontiguousarray(tensors[CONTEXT]).view(step._stage.dtype)[:, 0]
    return [
        dict(zip(spec.feature_names, row.tolist(), strict=True)) | {"bits": int(bits)}
        for row, bits in zip(tensors[FEATURES], context["degraded"], strict=True)
    ]


def test_a_bulk_row_is_decided_on_what_the_store_has(
    seeded: EmbeddedRedis, spec: FeatureSpec, open_step: Callable[..., FeatureStep]
) -> None:
    """
    The payment of its batch is answered at once, on defaults; it when the store is.

    By hand: with its own 40.00 the customer has 4 purchases of 25.00 on average.
    """
    step = open_step(store_deadline_limit_ms="60000")
    bulk = Patient(bought("b", amount=40.0), store_deadline_ms=60_000)
    with Paused(seeded) as store:
        payment, later = step.execute([request(bought("p", customer="x")), bulk])
        ((paid,),) = (read(step, spec, payment),)
        assert paid["bits"] == LOST
        assert later is None
        assert bulk.sender.silent
        # Nor does the next batch wait.
        (following,) = step.execute([request(bought("q", customer="y"))])
        assert read(step, spec, following)[0]["bits"] == LOST
        assert bulk.sender.silent
        store.go_on()
    (row,) = read(step, spec, bulk.sender.answer())
    assert row["bits"] == 0
    assert row["customer_nb_tx_1d"] == 4
    assert row["customer_avg_amount_1d"] == 25.0
    assert (step._second.found, step._second.lost) == (1, 0)


def test_a_store_that_is_late_again_leaves_the_first_answer(
    seeded: EmbeddedRedis, spec: FeatureSpec, open_step: Callable[..., FeatureStep]
) -> None:
    """A request that asks for a year gets the limit: the answer comes, and says so."""
    step = open_step(store_deadline_limit_ms="20")
    bulk = Patient(bought("b"), store_deadline_ms=31_536_000_000)
    with Paused(seeded):
        assert step.execute([bulk]) == [None]
        (row,) = read(step, spec, bulk.sender.answer())
    assert row["bits"] == LOST
    assert row["customer_nb_tx_1d"] == 1  # the default
    assert (step._second.found, step._second.lost) == (0, 1)


@pytest.mark.parametrize("asked", [{}, {"store_deadline_ms": 5}])
def test_others_are_answered_with_their_batch(
    seeded: EmbeddedRedis,
    spec: FeatureSpec,
    open_step: Callable[..., FeatureStep],
    asked: dict[str, int],
) -> None:
    """A request that says nothing, and one that asks for no more than 5 ms."""
    step = open_step()
    with Paused(seeded):
        (response,) = step.execute([request(bought("b"), **asked)])
    assert read(step, spec, response)[0]["bits"] == LOST


def test_what_the_store_answers_in_time_is_not_looked_up_again(
    spec: FeatureSpec, open_step: Callable[..., FeatureStep]
) -> None:
    """A patient request of a store that answers is like any other."""
    step = open_step(store_deadline_ms="30000", store_deadline_limit_ms="60000")
    bulk = Patient(bought("b", amount=40.0), store_deadline_ms=60_000)
    (response,) = step.execute([bulk])
    (row,) = read(step, spec, response)
    assert (row["bits"], row["customer_nb_tx_1d"]) == (0, 4)
    assert bulk.sender.silent


def test_an_earlier_decision_that_is_damaged_is_named_later(
    seeded: EmbeddedRedis, spec: FeatureSpec, open_step: Callable[..., FeatureStep]
) -> None:
    """The row has its windows, and the bit that says it was decided again."""
    step = open_step(store_deadline_limit_ms="60000")
    packed = b"\1" + bytes(40)  # no decision that we wrote
    store = RedisStore(seeded.url, deadline_s=30.0)
    store.flush([], extra_commands=[(b"SET", b"tollgate:fraud:decided:b", packed)])
    bulk = Patient(bought("b"), store_deadline_ms=60_000)
    with Paused(seeded) as paused:
        assert step.execute([bulk]) == [None]
        paused.go_on()
    (row,) = read(step, spec, bulk.sender.answer())
    assert row["bits"] == Degraded.LOOKUPS_UNREAD
    assert row["customer_nb_tx_1d"] == 4


def test_the_limit_is_a_parameter_of_the_step() -> None:
    """A second unless said otherwise."""
    assert store_settings({}).deadline_limit_s == 1.0
    assert store_settings({"store_deadline_limit_ms": "250"}).deadline_limit_s == 0.25
