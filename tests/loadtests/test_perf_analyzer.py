"""perf_analyzer's input data, read as its documentation says; commands in full."""

from __future__ import annotations

import base64
import json
import re
import shlex
import struct
from pathlib import Path

import pytest

from loadtests.perf_analyzer import commands, input_data, main
from tollgate.features.spec.feature_spec import FeatureSpec, all_fields, wire_inputs
from tollgate.repository.releases.served_versions import served_spec
from tollgate.testing import TestServer
from tollgate_client import Client

CHECKOUT = Path(__file__).parents[2]


def test_every_purchase_is_one_row_with_types_that_servers_take(
    spec: FeatureSpec,
) -> None:
    """Sent as they stand in the file, all are decided; ids never come again."""
    data = json.loads(json.dumps(input_data(spec, 300)))
    assert list(data) == ["data"]
    assert all(list(row) == list(wire_inputs(spec)) for row in data["data"])
    assert all(one["shape"] == [1] for row in data["data"] for one in row.values())
    columns = {
        name: [row[name]["content"][0] for row in data["data"]]
        for name in data["data"][0]
    }
    assert all(type(one) is str for one in columns["transaction_id"])
    assert all(type(one) is int for one in columns["event_time"])
    assert len(set(columns["transaction_id"])) == 300
    with TestServer() as server, Client(server.url) as client:
        answers = list(client.decide_many(columns))
        assert all(all(one.decision) for one in answers)
        assert len(server.asked) == 300


def test_a_number_that_is_missing_is_eight_bytes() -> None:
    """JSON has no NaN, and a word that is missing is empty."""
    spec = served_spec(CHECKOUT / "model_repository", product="credit")
    text = json.dumps(input_data(spec, 400), allow_nan=False)
    missing = re.findall(r'\{"b64": "([^"]+)"\}', text)
    assert missing
    (number,) = {struct.unpack("<d", base64.b64decode(one))[0] for one in missing[:1]}
    assert number != number
    named = {*wire_inputs(spec), *all_fields(spec)}
    assert {name for row in json.loads(text)["data"] for name in row} == named


def test_commands_hold_no_secret() -> None:
    """The shell reads it when they are called."""
    lines_printed = commands(
        Path("data/fraud.json"),
        product="fraud",
        grpc_url="127.0.0.1:8001",
        rate=250.0,
        address=Path(".tollgate/server.json"),
    )
    lines = [line for line in lines_printed if not line.startswith("#")]
    for line in lines:
        words = shlex.split(line)
        assert words[:3] == ["perf_analyzer", "-m", "fraud"]
        assert words[3:7] == ["-i", "grpc", "-u", "127.0.0.1:8001"]
        assert words[8].startswith("triton-grpc-protocol-admin:$(sed -n ")
        assert words[words.index("--input-data") + 1] == "data/fraud.json"
    assert "--request-rate-range 250 --request-distribution poisson" in lines[-1]


def test_without_a_server_it_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is written."""
    out = tmp_path / "out"
    assert main(["--out", str(out), "--state", str(tmp_path)]) == 2
    assert "no server runs in" in capsys.readouterr().err
    assert not out.exists()
