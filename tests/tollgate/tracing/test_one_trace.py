"""A decision is one trace, from its caller through the steps of a real server."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tollgate.latency_budget.step_batches import record_batches
from tollgate.testing.supervised import Supervised
from tollgate.tracing.context import sample
from tollgate_client import (
    AsyncDecisionClient,
    DecisionClient,
    Fallback,
    InvalidRequest,
    Options,
)

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]
RULE = Fallback(otherwise="review")
TRACED = Options(traces=True, deadline_s=10)
PLAIN = Options(deadline_s=10)
SECRET = "carol-4711"
PARTS = {
    "fraud_features": {"store"},
    "model": set(),
    "fraud_decision": {"policy", "journal"},
}


@pytest.fixture(scope="module")
def served(otlp: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """The committed product, which traces every request that brings no trace."""
    folder = tmp_path_factory.mktemp("traced")
    shutil.copytree(CHECKOUT / "model_repository", folder / "repository")
    words = ("up", "--otlp-endpoint", otlp.url, "--trace-rate", "1")
    server = Supervised(folder / "repository", folder / "state", words=words)
    server.wait(lambda: bool(server.health_url) and server.ready())
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def tracer(otlp: Any) -> Iterator[trace.Tracer]:
    """What a service sets up for itself."""
    provider = TracerProvider(resource=Resource.create({"service.name": "checkout"}))
    exporter = OTLPSpanExporter(endpoint=f"{otlp.url}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield provider.get_tracer("checkout")
    provider.shutdown()


def purchase(transaction_id: str) -> dict[str, object]:
    """A purchase just now."""
    return {
        "transaction_id": transaction_id,
        "customer_id": SECRET,
        "terminal_id": "kiosk-4711",
        "amount": 12.34,
        "event_time": time.time_ns() // 1000,
    }


def named(spans: list[Any], name: str) -> Any:
    """Pick the one span with a name."""
    (found,) = [span for span in spans if span.name == name]
    return found


def attributes(span: Any) -> Mapping[str, Any]:
    """Read the attributes of a span."""
    values = {one.key: one.value for one in span.attributes}
    return {key: getattr(one, one.WhichOneof("value")) for key, one in values.items()}


def check_server_part(spans: list[Any], *, parent_id: bytes) -> Any:
    """The whole, the steps in it in their order, and what each did; gives the whole."""
    request = named(spans, "fraud")
    assert request.parent_span_id == parent_id
    assert request.kind == 2  # SERVER
    steps = [named(spans, name) for name in PARTS]
    for step in steps:
        assert step.parent_span_id == request.span_id
        inner = {one.name for one in spans if one.parent_span_id == step.span_id}
        assert inner == PARTS[step.name]
    starts = [step.start_time_unix_nano for step in steps]
    assert starts == sorted(starts)
    return request


def test_one_decision_is_one_trace(
    served: Supervised, otlp: Any, tracer: trace.Tracer
) -> None:
    """Caller, client, server, steps: each the child of the one before; found by id."""
    with (
        DecisionClient([served.grpc_url], fallback=RULE, options=TRACED) as client,
        tracer.start_as_current_span("checkout") as outer,
    ):
        answer = client.decide(purchase("t-one"))
    assert answer.source == "model"
    trace_id = f"{outer.get_span_context().trace_id:032x}"
    otlp.wait(lambda: len(otlp.trace(trace_id)) == 9)
    spans = otlp.trace(trace_id)
    checkout, call = named(spans, "checkout"), named(spans, "decide fraud")
    assert call.parent_span_id == checkout.span_id
    assert call.kind == 3  # CLIENT
    request = check_server_part(spans, parent_id=call.span_id)
    by_id = {
        span.span_id
        for span in otlp.spans
        if attributes(span).get("tollgate.transaction_id") == "t-one"
    }
    assert by_id == {call.span_id, request.span_id}
    for span in (call, request):
        assert attributes(span)["tollgate.decision"] == answer.decision
        assert attributes(span)["tollgate.release"] == answer.release
    assert not any(SECRET.encode() in body for body in otlp.bodies)


def test_calls_that_share_a_request_are_linked(
    served: Supervised, otlp: Any, tracer: trace.Tracer
) -> None:
    """The request is in the trace of the first and names the others; rows are told."""
    ids = [f"t-{number}" for number in range(3)]

    async def one(client: AsyncDecisionClient, transaction_id: str) -> Any:
        with tracer.start_as_current_span("checkout") as outer:
            await client.decide(purchase(transaction_id))
            return outer.get_span_context().trace_id.to_bytes(16, "big")

    async def all_at_once() -> list[bytes]:
        async with AsyncDecisionClient(
            [served.grpc_url], fallback=RULE, options=TRACED
        ) as client:
            return await asyncio.gather(*(one(client, name) for name in ids))

    traces = asyncio.run(all_at_once())
    first = traces[0].hex()
    otlp.wait(lambda: len(otlp.trace(first)) == 13)
    spans = otlp.trace(first)
    call, request = named(spans, "decide fraud"), named(spans, "request fraud")
    assert request.parent_span_id == call.span_id
    others = [named(otlp.trace(one.hex()), "decide fraud") for one in traces[1:]]
    assert [link.span_id for link in request.links] == [one.span_id for one in others]
    for other in others:
        assert [link.span_id for link in other.links] == [request.span_id]
    request = check_server_part(spans, parent_id=request.span_id)
    assert attributes(request)["tollgate.rows"] == 3
    rows = [span for span in spans if span.name == "row"]
    assert {span.parent_span_id for span in rows} == {request.span_id}
    assert [attributes(span)["tollgate.transaction_id"] for span in rows] == ids


def test_what_its_caller_does_not_record_is_not_traced(
    served: Supervised, otlp: Any
) -> None:
    """The flag of a trace context counts, whatever the rate; without one the rate does.

    The trace of a request that brings none is known from its id.
    """
    silent, spoken = "0c" * 16, sample(b"t-rate", rate=1)
    assert spoken is not None
    with DecisionClient([served.grpc_url], fallback=RULE, options=PLAIN) as client:
        client.decide(purchase("t-silent"), traceparent=f"00-{silent}-{'1' * 16}-00")
        client.decide(purchase("t-rate"))
    otlp.wait(lambda: len(otlp.trace(spoken.trace_id)) == 7)
    request = check_server_part(otlp.trace(spoken.trace_id), parent_id=b"")
    assert attributes(request)["tollgate.transaction_id"] == "t-rate"
    assert otlp.trace(silent) == []
    assert not any(b"t-silent" in body for body in otlp.bodies)


def test_a_request_that_is_refused_is_a_failed_one(
    served: Supervised, otlp: Any
) -> None:
    """No step decides it; nothing of what was wrong is told."""
    number = "0d" * 16
    wrong = purchase("t-wrong") | {"event_time": time.time_ns() // 1000 + 10**12}
    with (
        DecisionClient([served.grpc_url], fallback=RULE, options=PLAIN) as client,
        pytest.raises(InvalidRequest, match="over a day ahead"),
    ):
        client.decide(wrong, traceparent=f"00-{number}-{'1' * 16}-01")
    otlp.wait(lambda: len(otlp.trace(number)) == 2)
    request = named(otlp.trace(number), "fraud")
    assert (request.status.code, request.status.message) == (2, "every row is bad")
    assert named(otlp.trace(number), "fraud_features").parent_span_id == request.span_id


def test_steps_are_looked_at_beside_it(served: Supervised, otlp: Any) -> None:
    """`tollgate budget` measures a server whose requests are traced."""
    number = "0e" * 16
    steps = ("fraud_features", "fraud_model", "fraud_decision")
    with (
        DecisionClient([served.grpc_url], fallback=RULE, options=PLAIN) as client,
        record_batches(served.state, steps) as found,
    ):
        client.decide(purchase("t-both"), traceparent=f"00-{number}-{'1' * 16}-01")
    assert set(found[0].step.tolist()) == {0, 1, 2}
    otlp.wait(lambda: len(otlp.trace(number)) == 7)
