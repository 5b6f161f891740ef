"""When `tollgate serve` and `up` trace."""

from __future__ import annotations

import pytest

from tollgate.cli.operations.supervised_server import tracing_of
from tollgate.errors import InputError
from tollgate.settings import Settings
from tollgate.tracing import Tracing

URL = "http://collector:4318"
VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def _without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


def test_nothing_is_traced_unless_somebody_names_a_collector() -> None:
    """A rate alone is a mistake that is told."""
    assert tracing_of(Settings()) is None
    assert tracing_of(Settings(otlp_endpoint=URL)) == Tracing(URL, 0)
    with pytest.raises(InputError, match="--trace-rate: needs --otlp-endpoint"):
        tracing_of(Settings(trace_rate=5))
    with pytest.raises(InputError, match="--trace-rate: -1 is below 0"):
        tracing_of(Settings(otlp_endpoint=URL, trace_rate=-1))


def test_opentelemetrys_own_variables_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless OpenTelemetry is switched off; what is told us counts nevertheless."""
    monkeypatch.setenv(VARIABLE, URL)
    assert tracing_of(Settings(trace_rate=5)) == Tracing("", 5)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert tracing_of(Settings()) is None
    assert tracing_of(Settings(otlp_endpoint=URL)) == Tracing(URL, 0)
