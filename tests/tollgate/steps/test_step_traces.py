"""What a step tells of traced requests, and that it costs no answer."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tollgate.steps.step_tracing import StepTraces, open_traces
from tollgate.tracing import PIPE_VARIABLE
from tollgate.tracing.spans import Span, SpanWriter, read_spans

TRACE, CALLER = "ab" * 16, "cd" * 8
SECRET = "t-4711"


class Asked:
    """A request as a step sees it: here, its parameters alone."""

    def __init__(self, text: str) -> None:
        self._text = text

    def parameters(self) -> str:
        """What came with it."""
        if self._text == "broken":
            raise RuntimeError(SECRET)
        return self._text


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[StepTraces, int]]:
    """A feature step's traces, and the end to read from."""
    path = tmp_path / "spans"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    writer = SpanWriter(path)
    yield StepTraces(writer, product="shop", model="shop_features", rate=0), end
    writer.close()
    os.close(end)


def scored(traces: StepTraces, *texts: str) -> None:
    """Tell of a batch of requests, two rows each."""
    traces.begin(1_000)
    traces.scored(
        [Asked(text) for text in texts],
        ids=[b"t"] * 2 * len(texts),
        bounds=list(range(0, 2 * len(texts) + 1, 2)),
        rejected=[],
        began_us=1_000,
        worked_us=500,
    )


def spans(end: int) -> list[Span]:
    """Read the spans that were written."""
    try:
        return list(read_spans(os.read(end, 1 << 16))[0])
    except BlockingIOError:
        return []


def test_only_recorded_requests_of_a_batch_are_traced(
    pipe: tuple[StepTraces, int],
) -> None:
    """The others share its time, and leave no word."""
    traces, end = pipe
    header = f'{{"traceparent": "00-{TRACE}-{CALLER}-%s"}}'
    scored(traces, "", header % "00", header % "01", '{"traceparent": 7}', "{}")
    (found,) = spans(end)
    assert (found.trace_id, found.name) == (TRACE, "shop_features")
    assert found.end_ns - found.start_ns == 500_000
    assert found.attributes == {"tollgate.batch_rows": 10}


def test_a_trace_never_costs_an_answer(
    pipe: tuple[StepTraces, int], caplog: pytest.LogCaptureFixture
) -> None:
    """What goes wrong is logged once, without its words, and the step goes on."""
    traces, end = pipe
    with caplog.at_level(logging.ERROR, logger="tollgate.steps"):
        scored(traces, "broken")
        scored(traces, "broken")
    assert spans(end) == []
    (line,) = [one.message for one in caplog.records]
    assert "no trace was written" in line
    assert SECRET not in line


def test_a_step_without_a_pipe_traces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """None is named: silently. Nobody reads there: with one line."""
    monkeypatch.delenv(PIPE_VARIABLE, raising=False)
    assert open_traces(product="shop", model="shop_features") is None
    assert not caplog.records
    monkeypatch.setenv(PIPE_VARIABLE, str(tmp_path / "spans"))
    assert open_traces(product="shop", model="shop_features") is None
    (line,) = [one.message for one in caplog.records]
    assert "nothing is traced" in line
