"""Nobody decides but the ensemble: calls of its steps, forged and replayed contexts."""

from __future__ import annotations

import re
import struct
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import InferenceServerClient, service_pb2, service_pb2_grpc
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException

from tollgate.errors import ServerError
from tollgate.schema import DIRECT_CALL
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton import control
from tollgate.server.triton.control import Endpoint
from tollgate.server.triton.private_names import mark_direct_calls

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]
STEPS = ("fraud_features", "fraud_model", "fraud_decision")
_PRIVATE = re.compile(r"--[0-9a-f]{32}")
Columns = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """The fraud product, alone."""
    state = tmp_path_factory.mktemp("direct")
    with serve(CHECKOUT / "model_repository", state=state) as embedded:
        yield embedded


def purchase(name: str, amount: float = 12.5) -> Columns:
    """One row of the ensemble's inputs."""
    ids = (name, f"{name}-c", f"{name}-t")
    named = zip(("transaction_id", "customer_id", "terminal_id"), ids, strict=True)
    columns = {key: np.array([[text.encode()]], np.object_) for key, text in named}
    columns["amount"] = np.array([[amount]])
    columns["event_time"] = np.array([[time.time_ns() // 1000]], np.int64)
    return columns


def ask(server: Any, name: str, columns: Columns) -> Columns:
    """Send one request to a model, by the name that it is served under."""
    return control.infer(server, name, inputs=columns, parameters={}, timeout_s=20)


def stranger(served: Embedded) -> Endpoint:
    """The server as a caller knows it: an address."""
    return Endpoint(served.grpc_url)


def signed(served: Embedded, name: str) -> Columns:
    """Call the feature step by its private name, which no caller knows."""
    return ask(served.triton, "fraud_features", purchase(name))


def decide(served: Embedded, given: Columns, probabilities: list[float]) -> Columns:
    """Call the decision step by its private name."""
    numbers = np.array([probabilities], np.float32)
    return ask(served.triton, "fraud_decision", {**given, "probabilities": numbers})


def refused(served: Embedded) -> dict[tuple[str, str], float]:
    """Read how many requests were refused, by step and reason."""
    with urllib.request.urlopen(served.metrics_url) as page:
        text = page.read().decode()
    found = {}
    for line in text.splitlines():
        if line.startswith("tollgate_refused_requests_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            found[labels["model"], labels["reason"]] = float(line.split()[-1])
    return found


def wait_for(served: Embedded, wanted: dict[tuple[str, str], float]) -> None:
    """Wait until the page, which is a second behind, shows what was refused."""
    until = time.monotonic() + 600
    while any(refused(served).get(key) != number for key, number in wanted.items()):
        assert time.monotonic() < until, (wanted, refused(served))
        time.sleep(0.1)


def test_no_caller_reaches_a_step(served: Embedded) -> None:
    """Calls of all three steps and of the trial are refused, counted and logged."""
    before = refused(served)
    zeros = np.zeros((1, 15), np.float32)
    genuine = signed(served, "taken")
    attempts = [
        ("fraud_features", purchase("direct")),
        ("fraud_model", {"features": zeros}),
        ("fraud_decision", {**genuine, "probabilities": np.array([[1, 0]], "f4")}),
        ("fraud--next", purchase("trial")),
    ]
    words = []
    for name, columns in attempts:
        with pytest.raises(ServerError) as caught:
            ask(stranger(served), name, columns)
        words.append(caught.value.problem)
    assert all("call the ensemble" in one for one in words)
    wait_for(
        served,
        {
            # The trial of a release has the product's inputs.
            ("fraud_features", "direct"): before["fraud_features", "direct"] + 2,
            # It refuses for the model, which cannot.
            ("fraud_decision", "direct"): before["fraud_decision", "direct"] + 2,
        },
    )
    log = served.triton.log.read_text()
    assert "fraud_features refused 1 requests (direct)" in log
    assert "fraud_decision refused 1 requests (direct)" in log


def test_a_forged_approval_does_not_stand_for_the_honest_request(
    served: Embedded,
) -> None:
    """The decision that stands for an id comes from the whole path alone."""
    honest = purchase("victim", amount=4_900.0)
    with pytest.raises(ServerError):
        ask(stranger(served), "fraud_features", honest)
    taken = signed(served, "other")
    forged = {**taken, "probabilities": np.array([[1, 0]], np.float32)}
    for key in ("context", "features"):
        changed = {**forged, key: forged[key].copy()}
        changed[key].view(np.uint8)[0, 33] ^= 1
        with pytest.raises(ServerError, match="do not carry the feature step's sign"):
            ask(served.triton, "fraud_decision", changed)
    first = ask(stranger(served), "fraud", honest)
    again = ask(stranger(served), "fraud", honest)
    assert first["decision"][0, 0] == again["decision"][0, 0] != b"approve"


def test_a_context_is_decided_once(served: Embedded) -> None:
    """Replayed with other probabilities it is refused, counted and logged."""
    before = refused(served)["fraud_decision", "replayed"]
    given = signed(served, "once")
    answer = decide(served, given, [0.2, 0.8])
    assert answer["decision"].shape == (1, 1)
    for _ in range(5):
        with pytest.raises(ServerError, match="were decided before"):
            decide(served, given, [1, 0])
    wait_for(served, {("fraud_decision", "replayed"): before + 5})


def test_garbage_costs_no_other_request_of_its_batch(served: Embedded) -> None:
    """Contexts of random bytes go to the decision step while callers are answered."""
    rng = np.random.default_rng(5)
    channel = grpc.insecure_channel(served.grpc_url)
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    decision = control.served_name(served.triton, "fraud_decision")
    calls = []
    for number in range(400):
        garbage = service_pb2.ModelInferRequest(model_name=decision)
        for name, kind, shape, raw in (
            ("probabilities", "FP32", [1, 2], struct.pack("<2f", 1, 0)),
            ("features", "FP32", [1, 15], rng.bytes(60)),
            ("context", "UINT8", [1, 966], rng.bytes(966)),
        ):
            garbage.inputs.add(name=name, datatype=kind, shape=shape)
            garbage.raw_input_contents.append(raw)
        calls.append((False, stub.ModelInfer.future(garbage, timeout=60)))
        genuine = request_of("fraud", purchase(f"honest-{number}"))
        calls.append((True, stub.ModelInfer.future(genuine, timeout=60)))
    answered = {True: 0, False: 0}
    for honest, call in calls:
        if call.exception() is None:
            answered[honest] += 1
    channel.close()
    assert answered == {True: 400, False: 0}


def request_of(name: str, columns: Columns) -> service_pb2.ModelInferRequest:
    """Write a request by hand."""
    request = service_pb2.ModelInferRequest(model_name=name)
    kinds = {"amount": "FP64", "event_time": "INT64"}
    for key, values in columns.items():
        kind = kinds.get(key, "BYTES")
        request.inputs.add(name=key, datatype=kind, shape=values.shape)
        if kind == "BYTES":
            text = values[0, 0]
            raw = struct.pack("<I", len(text)) + text
        else:
            raw = values.tobytes()
        request.raw_input_contents.append(raw)
    return request


def test_no_interface_of_a_caller_names_a_step(served: Embedded) -> None:
    """Others need the secret, and the metrics page has public names."""
    client = InferenceServerClient(served.grpc_url)
    for call in (
        lambda: client.get_model_config("fraud"),
        lambda: client.get_inference_statistics(),
        lambda: client.get_model_repository_index(),
    ):
        with pytest.raises(InferenceServerException, match="restricted"):
            call()
    shown = [str(client.get_model_metadata(name)) for name in ("fraud", STEPS[0])]
    client.close()
    with urllib.request.urlopen(served.metrics_url) as page:
        shown.append(page.read().decode())
    assert served.triton.private_suffix
    assert not any(_PRIVATE.search(text) for text in shown)
    series = [
        line.rpartition(" ")[0]
        for line in shown[-1].splitlines()
        if line and not line.startswith("#")
    ]
    assert len(series) == len(set(series))
    for step in STEPS:
        assert f'nv_inference_count{{model="{step}",version=' in shown[-1]


@pytest.mark.parametrize("name", ["fraud_features", "fraud_decision"])
def test_the_input_for_direct_calls_costs_other_requests_nothing(name: str) -> None:
    """Triton's batcher wakes for each request whose inputs vary in shape."""
    path = CHECKOUT / "model_repository" / name / "config.pbtxt"
    config = text_format.Parse(path.read_text(), ModelConfig())
    mark_direct_calls(config)
    assert [one.name for one in config.input if one.allow_ragged_batch] == [DIRECT_CALL]
    assert [one.name for one in config.input if -1 in one.dims] == [DIRECT_CALL]


def test_names_and_key_are_drawn_at_each_start(tmp_path: Path) -> None:
    """A name that got out is good until the next start, and leaves nothing behind."""
    repository = CHECKOUT / "model_repository"
    seen = []
    for _ in range(2):
        with serve(repository, state=tmp_path) as embedded:
            links = [
                path.name
                for path in (tmp_path / "served").iterdir()
                if path.is_symlink()
            ]
            suffix = embedded.triton.private_suffix
            assert sorted(links) == sorted(f"{step}--{suffix}" for step in STEPS)
            seen.append(suffix)
    assert seen[0] != seen[1]


def test_a_step_that_is_renewed_goes_on_refusing(served: Embedded) -> None:
    """The supervisor starts a step anew under the same private name."""
    served.serving["fraud"].renew("fraud_features")
    with pytest.raises(ServerError, match="call the ensemble"):
        ask(stranger(served), "fraud_features", purchase("renewed"))
    answer = ask(stranger(served), "fraud", purchase("renewed"))
    assert answer["error"][0, 0] == b""
