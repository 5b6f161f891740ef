"""The table of an overload test, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.overload import (
    PARTS,
    Flow,
    PartRun,
    line_of,
    main,
    parts_of,
    table,
    without_tls,
)
from loadtests.paced.raw import Server
from tollgate.gateway.template import TEMPLATE
from tollgate.load.results import CALL, Results


def results(*rows: tuple[float, float, int]) -> Results:
    """Make requests: when due, s; what it took, ms; its kind."""
    calls = np.zeros(len(rows), CALL)
    for place, (due_s, took_ms, kind) in enumerate(rows):
        calls[place]["due_us"] = due_s * 1e6
        calls[place]["took_us"] = took_ms * 1e3
        calls[place]["kind"] = kind
    return Results(calls, ("answered", "UNAVAILABLE", "no answer in time"), {})


def measured(part: str, *answers: Results) -> PartRun:
    """One run, of which the server saw three of four rows."""
    flows = [(Flow("shop", 2.0, 1), one) for one in answers]
    server = Server("r", purchases=3, feature_batches=1, model_batches=1, writes=0,
                    journalled=0, cpu_s=0.004, pss_mb=1.0)  # fmt: skip
    return PartRun(part, flows, server, gate_cpu_s=0.002, sender_cpu_s=0.001)


FOUR = results((0.5, 900.0, 0), (1.5, 10.0, 0), (2.0, 30.0, 0), (2.5, 0.5, 1))


def test_a_line_counts_what_was_due_after_the_warm_up() -> None:
    """Percentiles are samples; answered and refused by themselves."""
    line = line_of("x", FOUR, seconds=2.0)
    assert (line.due_per_s, line.answered_per_s, line.refused_per_s) == (1.5, 1.0, 0.5)
    assert (line.answered_ms, line.refused_ms) == ((10.0, 30.0), (0.5, 0.5))
    assert line.other_per_s == 0


def test_the_table_tells_what_is_kept_of_the_best_of_the_same_way() -> None:
    """Rows that reached the server are a share of all, cost is by request."""
    worse = results((1.5, 10.0, 0), (2.0, 1000.0, 2), (2.5, 0.5, 1), (2.6, 0.5, 1))
    text = table(
        [measured("gate 1/s", FOUR), measured("gate 2/s", worse)],
        measured="today",
        command="python",
        seconds=2.0,
    )
    first, second = text.splitlines()[-2:]
    assert first == (
        "| gate 1/s | 2 | 1 | 100% | 10.0 | 30.0 | 0 | 0.5 | 0.5 | 0 | 75% | 1,000 | "
        "500 | 250 |"
    )
    assert "| 50% | 10.0 | 10.0 | 1 |" in second


def test_bulk_and_greed_come_beside_what_is_judged() -> None:
    """First alone, then together; payments come first in each part."""
    parts = parts_of(PARTS, rates=[1000, 4000], rows=1, bulk_rows=8)
    assert [len(part.flows) for part in parts] == [1, 1, 1, 1, 1, 2, 1, 2]
    assert [part.flows[0].bulk for part in parts] == [False] * 8
    assert (parts[5].flows[1].bulk, parts[5].flows[1].rows) == (True, 8)
    assert parts[7].flows[0].caller != parts[7].flows[1].caller


def test_the_gate_is_the_gateway_without_tls() -> None:
    """One word is gone from the whole file."""
    template = TEMPLATE.read_text()
    assert without_tls(template).split() == [
        word for word in template.split() if word != "ssl"
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rates", "2", "1"], "--rates: are not above 0 and ascending"),
        (["--seconds", "0"], "--seconds: 0.0 is below 0.1"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    """In one line, before anything is served."""
    assert main(flags) == 2
    assert capsys.readouterr().err == f"loadtests.overload: {words}\n"
