"""Both senders of a tuning report the same results for the same server."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.load.arrivals import evenly
from tollgate.load.asyncio_sender import AsyncioSender
from tollgate.load.compiled_sender import CompiledSender
from tollgate.load.sender import Sender, best_sender
from tollgate.load.synthetic import synthetic_purchases
from tollgate.testing import Answer, TestServer
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import check_columns
from tollgate_client.wire import requests_of

NO_COMPILER = pytest.mark.skipif(
    not shutil.which("cc"), reason="no C compiler: apt-get install gcc libnghttp2-14"
)
ROWS = 2
PATIENCE_S = 60.0
Make = Callable[[TestServer], Sender]


@pytest.fixture(params=[pytest.param("compiled", marks=NO_COMPILER), "python"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Either sender, with the patience that a busy machine needs."""
    if request.param == "python":
        return lambda server: AsyncioSender(server.url, PATIENCE_S)
    return lambda server: CompiledSender(server.url, PATIENCE_S, tmp_path)


def requests(spec: FeatureSpec, count: int) -> list[bytes]:
    """Make up requests of two rows."""
    first_us = round((time.time() - 60) * 1e6)
    columns = synthetic_purchases(spec, count * ROWS, seed=5, first_us=first_us)
    rows = check_columns(columns, inputs=FRAUD_INPUTS)
    return list(
        requests_of(
            rows, product="fraud", size=ROWS, dry_run=False, deadline_s=PATIENCE_S
        )
    )


def test_request_with_an_undecided_row_is_no_answer(
    spec: FeatureSpec, make: Make
) -> None:
    """A request with one bad row counts as none; each is due when it was said."""
    with TestServer() as server:
        sent = requests(spec, 40)
        bad = next(iter(_ids(sent[7])))
        server.answer(bad, Answer(error="amount: -1: below 0"))
        at_s = evenly(40, rate_per_s=200.0)
        results = make(server).at_times(sent, at_s)
        assert len(server.asked) == 40 * ROWS
    assert results.at_s == pytest.approx(at_s, abs=1e-6)
    assert np.flatnonzero(~results.answered).tolist() == [7]
    late_us = results.calls["late_us"]
    assert (late_us >= 0).all()
    good = results.answered
    assert (results.calls["took_us"][good] >= late_us[good]).all()


def test_one_by_one_is_never_two(spec: FeatureSpec, make: Make) -> None:
    """Each begins when the one before has ended, until the time is over."""
    with TestServer() as server:
        results = make(server).one_by_one(requests(spec, 5_000), run_s=1.0)
        asked = len(server.asked)
    assert asked == len(results.at_s) * ROWS
    assert 1 < len(results.at_s) < 5_000
    ended_s = results.at_s + results.latency_s
    assert (results.at_s[1:] >= ended_s[:-1] - 1e-5).all()
    # The last one may be held up between its look at the clock and its beginning.
    assert (results.at_s[:-1] <= 1.0).all()
    assert not results.calls["late_us"].any()


def test_requests_may_end_before_the_time_does(spec: FeatureSpec, make: Make) -> None:
    """Then that was all."""
    with TestServer() as server:
        results = make(server).one_by_one(requests(spec, 3), run_s=30.0)
    assert results.answered.tolist() == [True] * 3


@NO_COMPILER
def test_the_compiled_one_is_taken_where_it_can_be_made(tmp_path: Path) -> None:
    """Nothing is said then, and it is compiled once."""
    said: list[str] = []
    wanted = {"timeout_s": 1.0, "folder": tmp_path, "report": said.append}
    assert best_sender("h:1", **wanted).name == "compiled"
    made = (tmp_path / "paced").stat()
    assert best_sender("h:1", **wanted).name == "compiled"
    assert (tmp_path / "paced").stat() == made
    assert said == []


def test_without_a_compiler_the_other_one_sends_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, with what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    sender = best_sender("h:1", timeout_s=1.0, folder=tmp_path, report=said.append)
    assert sender.name == "asyncio"
    (line,) = said
    assert "no C compiler" in line
    assert "libnghttp2-14" in line
    assert line.endswith("asyncio sends, some hundred requests a second")


def _ids(request: bytes) -> list[str]:
    """Read the transaction ids of a request: BYTES with their lengths before them."""
    raw = service_pb2.ModelInferRequest.FromString(request).raw_input_contents[0]
    length = int.from_bytes(raw[:4], "little")
    return [raw[4 : 4 + length].decode()]
