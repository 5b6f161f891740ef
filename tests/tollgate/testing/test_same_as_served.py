"""The test server and the real one give the same answers to the same requests."""

from __future__ import annotations

import shutil
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tollgate.pipeline import wait_for_store
from tollgate.server.serving.embedded import serve
from tollgate.testing import TestServer
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.errors import clean
from tollgate_client.inputs import check_columns
from tollgate_client.wire import decisions_of, requests_of

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]
PATIENT_S = 30.0
NOW_US = 1_600_000_000_000_000


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return stubs of the real server and of the test server."""
    folder = tmp_path_factory.mktemp("both")
    shutil.copytree(CHECKOUT / "model_repository", folder / "repository")
    wait_for_store(folder / "repository", product="fraud", deadline_ms=5_000)
    with (
        serve(folder / "repository", state=folder / "state") as real,
        TestServer() as scripted,
        grpc.insecure_channel(real.grpc_url) as one,
        grpc.insecure_channel(scripted.url) as other,
    ):
        yield tuple(
            service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for channel in (one, other)
        )


def request(rows=2, **changed):
    """Return a request of valid rows, with columns replaced."""
    columns = {
        "transaction_id": [f"t{row}" for row in range(rows)],
        "customer_id": ["c"] * rows,
        "terminal_id": ["m"] * rows,
        "amount": [1.5] * rows,
        "event_time": [NOW_US] * rows,
        **changed,
    }
    checked = check_columns(columns, inputs=FRAUD_INPUTS)
    (encoded,) = requests_of(
        checked, product="fraud", size=64, dry_run=True, deadline_s=PATIENT_S
    )
    return service_pb2.ModelInferRequest.FromString(encoded)


def edited(edit, **changed):
    """Return an edited request."""
    made = request(**changed)
    edit(made)
    return made


def ask(stub, made):
    """Return status and message; of an answer the errors and the shapes of tensors."""
    try:
        response = stub.ModelInfer(made, timeout=PATIENT_S)
    except grpc.RpcError as error:
        return error.code(), clean(error.details())
    described = [(one.name, one.datatype, list(one.shape)) for one in response.outputs]
    answer = None
    if len(described) == 6:
        answer = decisions_of(response.SerializeToString(), latency_s=0.0)
    errors = [] if answer is None else answer.error.tolist()
    decided = [] if answer is None else (answer.decision != "").tolist()
    scored = [] if answer is None else (~np.isnan(answer.score)).tolist()
    return grpc.StatusCode.OK, (sorted(described), errors, decided, scored)


def drop_input(made):
    """Leave the last tensor out."""
    del made.inputs[-1]
    del made.raw_input_contents[-1]


def rename_input(made):
    """Send an unknown tensor."""
    made.inputs[1].name = "colour"


def flatten(made):
    """Send [N] instead of [N, 1]."""
    for tensor in made.inputs:
        del tensor.shape[1:]


def typed(made):
    """Send values in their typed fields, as grpcurl does."""
    del made.raw_input_contents[:]
    for tensor in made.inputs:
        contents = tensor.contents
        if tensor.datatype == "BYTES":
            contents.bytes_contents.extend([b"a", b"b"])
        elif tensor.datatype == "FP64":
            contents.fp64_contents.extend([1.5, -1.0])
        else:
            contents.int64_contents.extend([NOW_US, NOW_US])


ROWS = {
    "good rows": request(),
    "a bad amount": request(amount=[1.5, -1.0]),
    "a long id": request(customer_id=["c", "x" * 129]),
    "no UTF-8": request(customer_id=["c", b"\xff\xfe"]),
    "a time ahead": request(event_time=[NOW_US, (2**60)]),
    "bad rows only": request(amount=[float("nan"), 0.001], event_time=[NOW_US, 1]),
    "one bad row": request(1, amount=[1e9]),
    "an empty id": request(1, transaction_id=[""]),
    "no time left": edited(
        lambda made: made.parameters["deadline_us"].MergeFrom(
            service_pb2.InferParameter(int64_param=0)
        )
    ),
    "dry_run a number": edited(
        lambda made: made.parameters["dry_run"].CopyFrom(
            service_pb2.InferParameter(int64_param=1)
        )
    ),
    "deadline a text": edited(
        lambda made: made.parameters["deadline_us"].CopyFrom(
            service_pb2.InferParameter(string_param="soon")
        )
    ),
    "32 rows": request(32),
    "typed values": edited(typed),
}
REFUSED = {
    "33 rows": request(33),
    "an input less": edited(drop_input),
    "an unknown input": edited(rename_input),
    "another shape": edited(flatten),
    "another type": edited(lambda made: setattr(made.inputs[3], "datatype", "INT64")),
    "another product": edited(lambda made: setattr(made, "model_name", "credit")),
    "too few bytes": edited(
        lambda made: made.raw_input_contents.__setitem__(3, b"\0" * 8)
    ),
    "a torn text": edited(lambda made: made.raw_input_contents.__setitem__(0, b"\1")),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_get_the_same_answers(both, name):
    """Status, tensors, rows with a decision, and the text of each error are equal."""
    real, scripted = both
    assert ask(scripted, ROWS[name]) == ask(real, ROWS[name])


@pytest.mark.parametrize("name", REFUSED)
def test_requests_are_refused_with_the_same_status(both, name):
    """The messages are Triton's own, and not part of the contract."""
    real, scripted = both
    status, words = ask(real, REFUSED[name])
    assert ask(scripted, REFUSED[name])[0] == status, words
    assert status is not grpc.StatusCode.OK


def test_metadata_is_the_same(both):
    """Names, types and shapes of inputs and outputs, in any order."""

    def described(stub):
        metadata = stub.ModelMetadata(
            service_pb2.ModelMetadataRequest(name="fraud"), timeout=PATIENT_S
        )
        return [
            sorted((one.name, one.datatype, list(one.shape)) for one in tensors)
            for tensors in (metadata.inputs, metadata.outputs)
        ] + [metadata.name, metadata.platform]

    real, scripted = both
    assert described(scripted) == described(real)


def test_health_is_the_same(both):
    """Live, ready, and the readiness of each product."""

    def health(stub):
        return (
            stub.ServerLive(service_pb2.ServerLiveRequest()).live,
            stub.ServerReady(service_pb2.ServerReadyRequest()).ready,
            *(
                stub.ModelReady(service_pb2.ModelReadyRequest(name=name)).ready
                for name in ("fraud", "credit")
            ),
        )

    real, scripted = both
    assert health(scripted) == health(real) == (True, True, True, False)
