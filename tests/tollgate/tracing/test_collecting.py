"""Spans of the steps reach a collector, as OTLP says."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tollgate.server.processes.environment import free_port
from tollgate.tracing import PIPE_VARIABLE, RATE_VARIABLE, Tracing
from tollgate.tracing.collecting import SpanCollector
from tollgate.tracing.spans import Span, SpanWriter

TRACE = "ab" * 16
SPAN = Span(
    TRACE,
    "1" * 16,
    "2" * 16,
    "store",
    1_700_000_000_000_000_001,
    1_700_000_000_000_000_009,
    attributes={"tollgate.transaction_id": "t-1", "tollgate.rows": 3, "dry": True},
    problem="every row is bad",
)


def test_a_span_arrives_as_it_was_made(
    otlp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, parent, nanoseconds, attributes and status; the resource says whose."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with SpanCollector(Tracing(otlp.url, 7), folder=tmp_path) as collector:
        assert collector.environment[RATE_VARIABLE] == "7"
        path = collector.environment[PIPE_VARIABLE]
        assert os.stat(path).st_mode & 0o777 == 0o600
        writer = SpanWriter(path)
        writer.write([SPAN])
        otlp.wait(lambda: otlp.trace(TRACE))
        writer.close()
    assert list(tmp_path.iterdir()) == []
    (found,) = otlp.trace(TRACE)
    assert (found.span_id.hex(), found.parent_span_id.hex()) == ("1" * 16, "2" * 16)
    assert found.name == "store"
    assert found.start_time_unix_nano == 1_700_000_000_000_000_001
    assert found.end_time_unix_nano == 1_700_000_000_000_000_009
    attributes = {one.key: one.value for one in found.attributes}
    assert attributes["tollgate.transaction_id"].string_value == "t-1"
    assert attributes["tollgate.rows"].int_value == 3
    assert attributes["dry"].bool_value is True
    assert (found.status.code, found.status.message) == (2, "every row is bad")
    attributes = {
        one.key: one.value.string_value for one in otlp.resources[-1].attributes
    }
    assert attributes["service.name"] == "tollgate"
    assert attributes["deployment.environment"] == "test"


def test_what_was_written_last_is_sent_at_the_end(otlp: Any, tmp_path: Path) -> None:
    """A server that stops leaves no span in the pipe."""
    last = Span("cd" * 16, "3" * 16, "", "last", 1, 2)
    with SpanCollector(Tracing(otlp.url), folder=tmp_path) as collector:
        writer = SpanWriter(collector.environment[PIPE_VARIABLE])
        writer.write([last])
        writer.close()
    assert [one.name for one in otlp.trace("cd" * 16)] == ["last"]


def test_an_unreachable_collector_is_logged_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    otlp: Any,
) -> None:
    """One line, however many spans are lost."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    away = Tracing(f"http://127.0.0.1:{free_port()}")
    with caplog.at_level(logging.INFO):
        with SpanCollector(away, folder=tmp_path) as collector:
            writer = SpanWriter(collector.environment[PIPE_VARIABLE])
            writer.write([SPAN])
            otlp.wait(lambda: caplog.records)
            writer.write([SPAN])
            writer.close()
        lines = [one.message for one in caplog.records]
    assert len(lines) == 1
    assert "1 spans were not accepted" in lines[0]


def test_without_opentelemetry_it_says_what_to_install() -> None:
    """In one line, before anything starts."""
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from pathlib import Path\n"
        "from tollgate.tracing import Tracing\n"
        "from tollgate.tracing.collecting import SpanCollector\n"
        "try: SpanCollector(Tracing(), folder=Path('x'))\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "is not installed" in done.stdout
    assert "pip install -e '.[traces]' in the checkout" in done.stdout
