"""docs/clients.md says what is so: its examples run, its tables are whole."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tollgate.schema import ANSWER_TYPES, DEADLINE_US, DRY_RUN, Degraded
from tollgate.testing import RankedAnswer, TestServer
from tollgate_client.attempts import RETRY, RETRY_SAME_SERVER
from tollgate_client.contract import SHOP_FIELDS, SHOP_INPUTS
from tollgate_client.telemetry import COUNTERS
from tollgate_client.wire import decisions_of

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "clients.md").read_text()
README = (CHECKOUT / "clients" / "python" / "README.md").read_text()
SERVED_ON = "127.0.0.1:8001"


def blocks(language, page=PAGE):
    """List a page's code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.M | re.S)


ITEMS = RankedAnswer(items=tuple(f"i-{place}" for place in range(50)))


@contextmanager
def served(example, *, name):
    """Run an example against a server of its product."""
    ranks = "Recommender" in example
    shop = {"inputs": SHOP_INPUTS, "fields": SHOP_FIELDS, "default": ITEMS}
    product = "shop" if ranks else "fraud"
    with TestServer(product, **(shop if ranks else {})) as server:
        code = example.replace(SERVED_ON, server.url)
        exec(compile(code, name, "exec"), {"__name__": "page"})
        yield server


@pytest.mark.parametrize("number", range(5))
def test_python_examples_run(number, capsys):
    """Against a server that answers; those of a test server bring their own."""
    example = blocks("python")[number]
    own = "TestServer" in example
    assert (SERVED_ON in example) != own
    with served(example, name=f"docs/clients.md, {number}") as server:
        assert bool(server.asked) != own
    lines = capsys.readouterr().out.split("\n")[:-1]
    assert len(lines) == (1, 100, 4, 0, 0)[number]
    if number < 2:
        assert all(line.split()[0] in ("approve", "review") for line in lines)
    elif number == 2:
        assert lines == ["i-0 1.0 personal", *lines[1:3], "server "]


@pytest.mark.parametrize("number", range(3))
def test_examples_of_the_readme_run(number, capsys):
    """The client's own README: many rows, one payment, and items for a user."""
    example = blocks("python", README)[number]
    with served(example, name=f"README.md, {number}") as server:
        assert server.asked
    words = capsys.readouterr().out.split()
    if number < 2:
        assert set(words) <= {"approve", "review", "model"}
    else:
        assert words[-1] == "server"
        assert words[0] == "('i-0',"


def test_there_are_no_other_examples():
    """A new one is run too."""
    assert len(blocks("python")) == 5
    assert len(blocks("python", README)) == 3


def test_the_json_for_grpcurl_is_a_request():
    """Read as grpcurl reads it, it is decided."""
    (text,) = blocks("json")
    request = json_format.Parse(text, service_pb2.ModelInferRequest())
    with TestServer() as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        response = stub.ModelInfer(request, timeout=30).SerializeToString()
        answer = decisions_of(response, latency_s=0.0)
        (asked,) = server.asked
    assert (answer.decision.tolist(), answer.error.tolist()) == (["approve"], [""])
    assert (asked.transaction_id, asked.deadline_us) == ("q-1", 50_000)
    assert asked.values["customer_id"] == "carol"
    assert np.isfinite(answer.score).all()


def test_each_bit_has_its_advice():
    """All that the schema knows, by their numbers."""
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.M)
    assert {name: int(bit) for bit, name in rows} == {
        bit.name: bit.value.bit_length() - 1 for bit in Degraded
    }


def test_outputs_and_parameters_are_all_named():
    """What goes over the wire."""
    for name in (*ANSWER_TYPES, DEADLINE_US, DRY_RUN):
        assert f"| `{name}` |" in PAGE


def test_statuses_are_retried_as_the_page_says():
    """Row by row of its table, against the client's own sets."""
    table = PAGE.partition("| gRPC status |")[2].partition("\n\n")[0]
    said = {}
    for row in table.splitlines()[2:]:
        names, _, advice = [cell.strip() for cell in row.strip("|").split("|")]
        for name in re.findall(r"[A-Z_]{2,}", names):
            said[name] = advice
    for code in grpc.StatusCode:
        advice = said.get(code.name, "no")
        assert advice.startswith("yes") == (code in RETRY), code
        assert ("the same server" in advice) == (code in RETRY_SAME_SERVER), code


def test_metrics_are_those_that_are_counted():
    """Name and label of each counter."""
    rows = re.findall(
        r"^\| `tollgate_client_(\w+?)(?:_total)?` \| `(\w+)` \|", PAGE, re.M
    )
    breaker = {"breaker_state": "address", "breaker_opened": "address"}
    counted = {name: label for name, (label, _) in COUNTERS.items()}
    assert dict(rows) == counted | breaker
