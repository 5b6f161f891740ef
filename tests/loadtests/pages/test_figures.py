"""Figures of a run, against arithmetic by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadtests.paced.raw import About, Mark, Raw
from loadtests.paced.scenario import Phase, Scenario
from loadtests.pages.figures import Figures, figures_of, groups_of
from loadtests.pages.tables import tables_of
from loadtests.results.markdown import spread
from tollgate.errors import InputError
from tollgate.load.results import CALL, NO_ANSWER

KINDS = ("answered", NO_ANSWER, "UNAVAILABLE", "INVALID_ARGUMENT")


def made(
    columns: dict[str, Any],
    *,
    rows: int = 2,
    run: int = 1,
    label: str = "",
    layers: dict[str, Any] | None = None,
) -> Raw:
    """Write a run of 10 s at 10 requests/s with 2 s of warm-up."""
    calls = np.zeros(100, CALL)
    calls["due_us"] = np.arange(100) * 100_000
    calls["took_us"] = 5_000
    calls["rows"] = calls["decided"] = rows
    calls["attempts"] = 1
    for name, values in columns.items():
        calls[name] = values
    scenario = Scenario(phases=(Phase(seconds=10, rate=10),), rows=rows)
    about = About(
        name="made-up",
        scenario=scenario,
        run=run,
        label=label,
        seed=1,
        driver="compiled",
        connections=4,
        command="made up",
        measured="nowhere",
        store="nothing",
        kinds=KINDS,
        examples={"UNAVAILABLE": "full"},
        marks=(Mark(0, "10 requests/s"), Mark(6, "trouble")),
        sender_cpu_s=0.1,
    )
    return Raw(about, calls, layers or {})


def figures(columns: dict[str, Any], **more: Any) -> Figures:
    """Work out the figures of a made-up run."""
    return figures_of(made(columns, **more), name="made-up-1")


def test_rate_and_throughput_are_of_requests_and_of_decisions() -> None:
    """80 requests of two rows are due in 8 s; what comes later than 10 s is no part."""
    took_us = np.full(100, 5_000)
    took_us[95:] = 700_000  # due at 9.5 to 9.9 s: none comes before 10 s
    found = figures({"took_us": took_us})
    assert (found.requests, found.measured_s) == (80, 8.0)
    assert found.rates.requests_due == 10.0
    assert found.rates.decisions_due == 20.0
    assert found.rates.requests == pytest.approx(75 / 8)
    assert found.rates.decisions == pytest.approx(2 * 75 / 8)


def test_the_warm_up_counts_nowhere() -> None:
    """Its slow answers and failures are in no figure, but answers that come after."""
    took_us = np.full(100, 5_000)
    took_us[:20] = 900_000
    kind = np.zeros(100)
    kind[:10] = 2
    found = figures({"took_us": took_us, "kind": kind})
    assert found.latency.max_ms == 5.0
    assert (found.failed, found.errors) == (0.0, ())
    assert found.rates.requests == pytest.approx(89 / 8)  # 11 … 19 of the warm-up


def test_percentiles_are_samples_and_who_waited_in_vain_counts() -> None:
    """1 … 80 ms; the slowest two got no answer, the fastest two were refused."""
    took_us = np.arange(100) * 1_000 - 19_000
    kind = np.zeros(100)
    kind[[98, 99]] = 1
    kind[[20, 21]] = 2
    found = figures({"took_us": np.maximum(took_us, 1), "kind": kind})
    # 3 … 80 ms are 78 samples: the 39th is 41 ms, the 71st 73 ms, the 78th 80 ms.
    assert found.latency.p50_ms == 41.0
    assert found.latency.p90_ms == 73.0
    assert found.latency.p99_ms == found.latency.max_ms == 80.0
    assert found.failed == pytest.approx(4 / 80)
    errors = {one.name: one for one in found.errors}
    assert errors[NO_ANSWER].latency.max_ms == 80.0
    assert errors["UNAVAILABLE"].latency.max_ms == 2.0
    assert errors["UNAVAILABLE"].example == "full"


def test_shares_are_of_rows() -> None:
    """Of two rows each: one degraded in 8 of 80 requests, one refused in 4."""
    degraded, refused, decided = np.zeros((3, 100))
    degraded[20:28] = 1
    refused[30:34] = 1
    decided[:] = 2 - refused
    found = figures(
        {
            "degraded": degraded,
            "bits": degraded * 3,
            "refused": refused,
            "decided": decided,
        }
    )
    assert found.degraded == pytest.approx(8 / 156)
    assert found.refused == pytest.approx(4 / 160)
    assert found.reasons == {"STORE_UNAVAILABLE": 8, "LAST_KNOWN_VECTOR": 8}


def test_bad_rows_are_held_against_good_ones() -> None:
    """Refused row by row, with the whole request, or not at all; a good one, too."""
    poisoned, refused, kind = np.zeros((3, 100))
    poisoned[20:26] = 1
    refused[20:22] = 1  # two in good company
    poisoned[22], kind[22] = 2, 3  # both rows of a request
    refused[50] = 1  # a good one
    found = figures({"poisoned": poisoned, "refused": refused, "kind": kind})
    assert (found.poison.bad, found.poison.bad_refused) == (7, 4)
    assert found.poison.good_refused == 1


def test_parts_begin_at_marks() -> None:
    """After the warm-up, and when the trouble begins."""
    took_us = np.full(100, 5_000)
    took_us[60:] = 50_000
    found = figures({"took_us": took_us})
    first, second = found.parts
    assert (first.from_s, first.until_s, second.until_s) == (2, 6, 10)
    assert (first.words, second.words) == ("10 requests/s", "trouble")
    assert first.latency is not None
    assert second.latency is not None
    assert (first.latency.max_ms, second.latency.p50_ms) == (5.0, 50.0)
    assert first.rates.requests_due == 10.0


def test_runs_of_the_same_stand_in_one_line_and_nothing_is_averaged() -> None:
    """The median run and the range; another label is another line."""
    runs = [
        figures({"took_us": ms * 1_000}, run=run, label=label, layers=layers)
        for run, (ms, label, layers) in enumerate(
            [
                (10, "", {"model": np.array([4.0, 6.0])}),
                (30, "", {"model": np.array([1.0, 2.0])}),
                (20, "", {}),
                (7, "other", {}),
            ],
            start=1,
        )
    ]
    groups = groups_of(runs)
    assert [len(one.runs) for one in groups] == [3, 1]
    tables = {table.title: table for table in tables_of(groups)}
    summary = tables["Summary"]
    line = dict(zip(summary.head, summary.rows[0], strict=True))
    assert line["scenario"] == "made-up 10/s of 2 rows"
    assert line["p99 ms"] == "20.0 (10.0 … 30.0)"
    assert (line["requests/s"], line["decisions/s"]) == (
        *("10 (10 … 10)", "20 (20 … 20)"),
    )
    assert summary.rows[1][0] == "other: made-up 10/s of 2 rows"
    assert tables["Layers"].rows == (
        (
            *("made-up 10/s of 2 rows", "model"),
            *("1.00 (1.00 … 4.00)", "2.00 (2.00 … 6.00)", "2 (2 … 2)"),
        ),
    )
    assert "Bad rows" not in tables
    assert spread([3.0, 1.0, 2.0, 4.0], 0) == "2 (1 … 4)"


def test_a_run_without_any_answer_has_the_time_its_callers_waited() -> None:
    """A server that collapsed is a result; one that was not there is none."""
    found = figures({"kind": 1, "took_us": 1_000_000, "decided": 0})
    assert (found.latency.p50_ms, found.failed) == (1_000.0, 1.0)
    assert (found.rates.requests, found.rates.requests_due) == (0.0, 10.0)
    with pytest.raises(InputError, match="made-up-1: no request of the measured time"):
        figures({"kind": 2})
