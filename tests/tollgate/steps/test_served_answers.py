"""Idempotent answers of a real Triton, with the journal that keeps them."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.support.steps.step_parameters import told_otherwise
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton import control
from tollgate.server.triton.probe import probe_columns
from tollgate.store.stored_decisions import stored_decision_key
from tollgate_client import Client, Decisions, InvalidRequest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"
NOW_US = time.time_ns() // 1000
PATIENCE_S = 600.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed product, with a store that may take its time."""
    copy = tmp_path_factory.mktemp("answers") / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    config = copy / "fraud_features/config.pbtxt"
    config.write_text(config.read_text().replace('_value: "5"', '_value: "5000"'))
    return copy


@pytest.fixture(scope="module")
def served(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Embedded]:
    """One server for the tests of this module."""
    with serve(repository, state=tmp_path_factory.mktemp("state")) as server:
        yield server


@pytest.fixture
def client(served: Embedded) -> Iterator[Client]:
    """A client."""
    with Client(served.grpc_url, timeout_s=20) as opened:
        yield opened


def rows(name: str, count: int, **changes: object) -> dict[str, object]:
    """Columns of purchases with ids of their own; a change replaces a column."""
    return {
        "transaction_id": [f"{name}{row}" for row in range(count)],
        "customer_id": [f"{name}c{row % 3}" for row in range(count)],
        "terminal_id": [f"{name}m{row % 5}" for row in range(count)],
        "amount": [10.0 + 200 * row for row in range(count)],
        "event_time": [NOW_US + row for row in range(count)],
    } | changes


def bits(answer: Decisions) -> tuple[object, ...]:
    """All that a caller receives, bit for bit."""
    return (
        *(answer.decision.tolist(), answer.score.tobytes(), answer.reason_codes),
        *(answer.degraded.tolist(), answer.error.tolist()),
        np.asarray(answer.release).tolist(),
    )


def wait_until_stored(served: Embedded, name: str, count: int) -> None:
    """Wait for the journal's thread."""
    keys = [
        stored_decision_key("fraud", b"%b%d" % (name.encode(), at))
        for at in range(count)
    ]
    until_s = time.monotonic() + PATIENCE_S
    with redis.Redis.from_url(served.store_url) as store:
        while store.exists(*keys) < count:
            assert time.monotonic() < until_s, "decisions are not stored"
            time.sleep(0.005)
        left_ms = store.pttl(keys[0])
    assert 500_000 < left_ms <= 600_000


def test_again_is_the_same_whatever_happened_since(
    served: Embedded, client: Client
) -> None:
    """Other events, a release of another name: every bit of the first answer."""
    first = client.decide(rows("a", 9))
    wait_until_stored(served, "a", 9)
    before = {"event_time": [NOW_US - 9 + row for row in range(9)]}
    client.decide(
        rows("a", 9, transaction_id=[f"x{row}" for row in range(9)], **before)
    )
    assert bits(client.decide(rows("a", 9))) == bits(first)
    with told_otherwise(served, "fraud_decision", release="fraud-99"):
        assert bits(client.decide(rows("a", 9))) == bits(first)
        dry = client.decide(rows("a", 9), dry_run=True)
        assert bits(dry) == bits(first)
        assert set(np.asarray(client.decide(rows("b", 2)).release)) == {"fraud-99"}


def test_a_changed_amount_is_a_conflict(served: Embedded, client: Client) -> None:
    """That row's; when there is no other, the request's."""
    client.decide(rows("d", 2))
    wait_until_stored(served, "d", 2)
    mixed = client.decide(rows("d", 3, amount=[10.0, 11.0, 12.0]))
    words = 'transaction_id: "d1": conflict: was decided with other content'
    assert mixed.error.tolist() == ["", words, ""]
    assert mixed.decision[1] == ""
    with pytest.raises(InvalidRequest, match=r"row 0: .*d0.*: conflict: was"):
        client.decide(rows("d", 1, amount=[10.01]))


def test_a_card_on_a_list_is_declined_at_its_next_purchase(
    served: Embedded, client: Client
) -> None:
    """On a repository that was never loaded before: parameters of a step stay."""
    with redis.Redis.from_url(served.store_url) as store:
        store.sadd("tollgate:fraud:list:stolen_cards", "lc1")
    on = client.decide(rows("l", 2))
    assert on.decision[1] == "decline"
    assert ["CARD_REPORTED_STOLEN" in one for one in on.reason_codes] == [False, True]


def test_twins_at_once_are_one_decision(served: Embedded) -> None:
    """Sent by eight callers together, twenty times over: eight equal answers."""
    for turn in range(20):
        answers: list[Decisions] = []
        ready = threading.Barrier(8)

        def ask(name: str, ready: threading.Barrier, into: list[Decisions]) -> None:
            with Client(served.grpc_url, timeout_s=20) as client:
                client.decide(rows(name + "w", 1), dry_run=True)
                ready.wait(PATIENCE_S)
                into.append(client.decide(rows(name, 4)))

        callers = [
            threading.Thread(target=ask, args=(f"e{turn}-", ready, answers))
            for _ in range(8)
        ]
        for one in callers:
            one.start()
        for one in callers:
            one.join()
        assert len(answers) == 8
        assert len({str(bits(one)) for one in answers}) == 1


def test_a_request_with_a_queue_timeout_changes_nothing_for_the_next(
    served: Embedded, client: Client
) -> None:
    """Triton's own `timeout`, of 1 ms and of 1 us: those after it are answered."""
    config = control.model_config(served.triton, "fraud")
    columns = probe_columns(config, count=1, now_us=NOW_US)
    inputs = []
    for name, values in columns.items():
        tensor = InferInput(name, values.shape, np_to_triton_dtype(values.dtype))
        tensor.set_data_from_numpy(values)
        inputs.append(tensor)
    with InferenceServerClient(served.grpc_url) as plain:
        for timeout_us in [1_000, 1] * 20:
            with contextlib.suppress(InferenceServerException):
                plain.infer("fraud", inputs, timeout=timeout_us, client_timeout=5)
            assert client.decide(rows("q", 1), dry_run=True).error.tolist() == [""]
