"""The feature step without Triton around it: what it notes when the store fails."""

from __future__ import annotations

import json
import os
import signal
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tollgate.backfill.tables import load_table
from tollgate.engine.row_batches import Batch
from tollgate.errors import HookError, InputError
from tollgate.features.feature_tables import TableRows
from tollgate.features.spec.feature_spec import load_spec
from tollgate.repair.spool_segments import read_segment, segments
from tollgate.schema import (
    APPENDS_PARAMETER,
    BREAKER_CALLS_PARAMETER,
    BREAKER_FAILURES_PARAMETER,
    BREAKER_SHARE_PARAMETER,
    CONTEXT_KEY_VARIABLE,
    STORE_DEADLINE_PARAMETER,
    STORE_PROBE_PARAMETER,
    STORE_URL_VARIABLE,
    UPDATES_PARAMETER,
    Applied,
    Degraded,
)
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.steps.feature_step import SPOOL_VARIABLE, FeatureStep
from tollgate.steps.store_parameters import store_settings
from tollgate.store.fallback.circuit_breaker import BreakerRules
from tollgate.store.redis.redis_store import RedisStore

NOW_US = 1_600_000_000_000_000
KNOWN = Degraded.LAST_KNOWN_VECTOR | Degraded.LOOKUPS_UNREAD


class Family:
    """A metric family that remembers, in the place of Triton's."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    reported: ClassVar[dict[str, float]] = {}

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        self.name = name

    def Metric(
        self, *, labels: dict[str, str], buckets: list[float] | None = None
    ) -> Told:
        """Make one metric."""
        rest = {key: value for key, value in labels.items() if key not in OF_ALL}
        return Told(" ".join([self.name, *rest.values()]), self.reported)


OF_ALL = ("product", "model", "version")


class Told:
    """One metric: the sum of its increments, or the last value."""

    def __init__(self, name: str, reported: dict[str, float]) -> None:
        self.name = name
        self.reported = reported
        reported[name] = 0

    def increment(self, by: float) -> None:
        """Raise a counter."""
        assert by >= 0
        self.reported[self.name] += by

    def set(self, value: float) -> None:
        """Set a gauge."""
        self.reported[self.name] = value

    def observe(self, value: float) -> None:
        """Count what a histogram sees."""
        assert value >= 0
        self.reported[self.name] += 1


@pytest.fixture
def server(tmp_path: Path) -> EmbeddedRedis:
    """A Redis of the test's own, not started."""
    return EmbeddedRedis(tmp_path)


def step_over(
    url: str, *, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FeatureStep:
    """Initialize the step over a store, as Triton would."""
    triton = types.ModuleType("triton_python_backend_utils")
    monkeypatch.setattr(triton, "MetricFamily", Family, raising=False)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton)
    monkeypatch.setenv(STORE_URL_VARIABLE, url)
    monkeypatch.setenv(CONTEXT_KEY_VARIABLE, "5e" * 32)
    parameters = {STORE_DEADLINE_PARAMETER: {"string_value": "500"}}
    step = FeatureStep()
    step.initialize(
        {
            "model_config": json.dumps({"parameters": parameters}),
            "model_name": "fraud_features",
            "model_repository": str(spec_path.parent.parent),
            "model_version": spec_path.parent.name,
        }
    )
    return step


def scored(
    step: FeatureStep, transaction_id: bytes, *, at_us: int = NOW_US
) -> tuple[Any, Any]:
    """Score one purchase; its features, and its context."""
    features, context = step._stage.score(
        Batch(
            ids={
                "transaction_id": [transaction_id],
                "customer_id": [b"c"],
                "terminal_id": [b"t"],
            },
            cents=np.array([100]),
            time_us=np.array([at_us]),
            errors={},
            bounds=[0, 1],
            dry=[False],
        ),
        arrival_us=0,
    )
    return features[0], context[0]


def applied(step: FeatureStep, transaction_id: bytes) -> tuple[int, int]:
    """Score one purchase; `applied` and `degraded` of its context."""
    _, context = scored(step, transaction_id)
    return int(context["applied"]), int(context["degraded"])


def test_applied_reports_the_outcome_in_the_store(
    server: EmbeddedRedis, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Yes and duplicate; unknown when it is silent; no when it is not there.

    The customer and the terminal are known by then, so their last known values serve.
    """
    with server:
        step = step_over(server.url, spec_path=spec_path, monkeypatch=monkeypatch)
        assert applied(step, b"1") == (Applied.YES, Degraded.COLD_START)
        assert applied(step, b"1") == (Applied.DUPLICATE, Degraded.COLD_START)
        os.kill(server.pid, signal.SIGSTOP)
        silent = applied(step, b"2")
        os.kill(server.pid, signal.SIGCONT)
        assert silent == (Applied.UNKNOWN, KNOWN)
    assert applied(step, b"3") == (Applied.NO, KNOWN)
    step.finalize()


def test_metrics_say_what_happened(
    server: EmbeddedRedis, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls by outcome, rows by bit, look-ups by found, by hand."""
    reported = Family.reported
    reported.clear()
    with server:
        step = step_over(server.url, spec_path=spec_path, monkeypatch=monkeypatch)
        bits = applied(step, b"1")[1]
        step._metrics.count(np.array([bits, 0], np.uint32))
        step._metrics.close()  # it exports the rest
    assert reported["tollgate_store_calls_total answered"] == 1
    assert reported["tollgate_store_call_seconds_count"] == 1
    assert reported["tollgate_store_call_seconds_bucket +Inf"] == 1
    assert 0 < reported["tollgate_store_call_seconds_sum"] < 5
    assert reported["tollgate_degraded_rows_total COLD_START"] == 1
    assert reported["tollgate_store_breaker_state"] == 0
    assert reported["tollgate_feed_watermark_seconds purchases"] == NOW_US / 1e6
    for number in range(5):  # as many failures as open the breaker
        bits = applied(step, b"%d" % (2 + number))[1]
        step._metrics.count(np.array([bits], np.uint32))
    step._metrics.export()
    assert reported["tollgate_last_known_bytes"] > 0
    assert reported["tollgate_store_breaker_state"] == 2
    assert reported["tollgate_store_breaker_opened_total"] == 1
    assert reported["tollgate_store_calls_total failed"] == 5
    assert reported["tollgate_degraded_rows_total LAST_KNOWN_VECTOR"] == 5
    assert reported["tollgate_last_known_values_total yes"] == 10
    assert reported["tollgate_spool_rows_total no"] == 5
    step.finalize()


def test_what_the_store_missed_goes_to_the_spool(
    spec_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder in the environment is where; without a store's address there is none."""
    spool = tmp_path / "spool"
    monkeypatch.setenv(SPOOL_VARIABLE, str(spool))
    step = step_over(
        "unix:///nowhere.sock", spec_path=spec_path, monkeypatch=monkeypatch
    )
    assert applied(step, b"7")[0] == Applied.NO
    step.finalize()
    (path,) = segments(spool / "fraud")
    (event,) = read_segment(path, path.read_bytes()).events
    assert json.loads(event)["transaction_id"] == "7"
    path.unlink()
    step = step_over("", spec_path=spec_path, monkeypatch=monkeypatch)
    assert applied(step, b"8")[0] == Applied.NO
    step.finalize()
    assert segments(spool / "fraud") == []


def test_when_the_store_is_left_alone_can_be_set() -> None:
    """Unless said otherwise: 5 in a row, or 10 of 20, and a probe every 250 ms."""
    assert store_settings({}).breaker == BreakerRules(
        failures_in_a_row=5, recent_calls=20, failed_share=0.5, probe_interval_s=0.25
    )
    given = {
        BREAKER_FAILURES_PARAMETER: "3",
        BREAKER_CALLS_PARAMETER: "8",
        BREAKER_SHARE_PARAMETER: "0.75",
        STORE_PROBE_PARAMETER: "40",
    }
    assert store_settings(given).breaker == BreakerRules(
        failures_in_a_row=3, recent_calls=8, failed_share=0.75, probe_interval_s=0.04
    )


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (BREAKER_FAILURES_PARAMETER, "0", "'0' is no number above 0"),
        (BREAKER_FAILURES_PARAMETER, "2.5", "'2.5' is no whole number"),
        (BREAKER_CALLS_PARAMETER, "many", "'many' is no number above 0"),
        (BREAKER_SHARE_PARAMETER, "1.01", "'1.01' is more than 1"),
        (STORE_DEADLINE_PARAMETER, "nan", "'nan' is no number above 0"),
        (STORE_PROBE_PARAMETER, "inf", "'inf' is no number above 0"),
    ],
)
def test_a_wrong_number_is_refused_by_name(name: str, text: str, problem: str) -> None:
    """File, parameter, value; the step does not load."""
    with pytest.raises(InputError) as caught:
        store_settings({name: text})
    assert str(caught.value) == f"config.pbtxt: {name}: {problem}"


def test_who_updates_is_one_of_three() -> None:
    """`stream` leaves writing to the stream; any other word is refused by name."""
    assert store_settings({}).updates
    assert store_settings({UPDATES_PARAMETER: "both"}).updates
    assert not store_settings({UPDATES_PARAMETER: "stream"}).updates
    assert store_settings({APPENDS_PARAMETER: "in_place"}).appends
    assert not store_settings({APPENDS_PARAMETER: "off"}).appends
    with pytest.raises(InputError, match="'nobody' is none of scoring, stream, both"):
        store_settings({UPDATES_PARAMETER: "nobody"})


def test_a_table_that_was_loaded_is_in_the_vector_and_its_hit_rate_on_the_page(
    server: EmbeddedRedis,
    spec_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Held from the start: two hits. Without it: absent, and then held as that."""
    folder = tmp_path / "fraud_features" / "1"
    folder.mkdir(parents=True)
    path = folder / "features.yaml"
    feature = "  - {name: limit, table: limits, column: limit, default: -1}"
    table = "tables: {limits: {entity: customer, refresh: 1h}}"
    path.write_text(f"{spec_path.read_text().rstrip()}\n{feature}\n{table}\n")
    spec = load_spec(path)
    rows = TableRows(
        source="a test",
        ids=[b"c"],
        valid_us=np.array([0]),
        values=np.array([[0.25]]),
    )
    reported = Family.reported
    with server:
        for loaded, degraded in ((False, Degraded.TABLE_MISSING), (True, 0)):
            reported.clear()
            if loaded:
                store = RedisStore(server.url, deadline_s=5.0)
                load_table(spec, spec.tables[0], rows, store)
                store.close()
            step = step_over(server.url, spec_path=path, monkeypatch=monkeypatch)
            for number in (b"1", b"2"):
                _, bits = applied(step, number)
                assert bits & Degraded.TABLE_MISSING == degraded
            step._metrics.count(np.array([bits], np.uint32))
            step.finalize()
            family = "tollgate_table_values_total"
            assert reported[f"{family} memory"] == (2 if loaded else 1)
            assert reported.get(f"{family} absent", 0) == (0 if loaded else 1)
            assert reported["tollgate_table_bytes"] > 0


HOOK = """\
import numpy as np

TABLE = np.array([2.0])


def hook(request, features):
    odd = request["event_time"] == 1_600_000_000_000_000
    return {"odd": TABLE[np.where(odd, 9, 0)] * features["amount"]}
"""


def test_a_row_that_its_hook_fails_for_is_scored_marked_and_counted(
    server: EmbeddedRedis,
    spec_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its default stands; a load refuses a hook that fails on made-up columns."""
    folder = tmp_path / "fraud_features" / "1"
    folder.mkdir(parents=True)
    (folder / "hook.py").write_text(HOOK)
    path = folder / "features.yaml"
    feature = "  - {name: odd, hook: odd, default: -7}\nhook: hook.py\n"
    path.write_text(f"{spec_path.read_text().rstrip()}\n{feature}")
    reported = Family.reported
    reported.clear()
    with server:
        step = step_over(server.url, spec_path=path, monkeypatch=monkeypatch)
        for late_us, number, failed in ((0, -7, True), (1, 2, False)):
            features, context = scored(step, b"%d" % late_us, at_us=NOW_US + late_us)
            bits = context["degraded"]
            assert features[-1] == number
            assert bool(bits & Degraded.HOOK_FAILED) is failed
            step._metrics.count(np.array([bits], np.uint32))
        step.finalize()
        assert reported["tollgate_degraded_rows_total HOOK_FAILED"] == 1
        path.with_name("hook.py").write_text(HOOK.replace("9, 0", "0, 9"))
        with pytest.raises(HookError, match="line 8: IndexError"):
            step_over(server.url, spec_path=path, monkeypatch=monkeypatch)
