"""Settings that no others beat in every respect, and their picture."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.support.tuning.simulated_server import LIMITS, MadeUpServer, seen
from tollgate.repository.slo import Slo
from tollgate.tuning.bench import draw
from tollgate.tuning.goals import Measurement, limits_of
from tollgate.tuning.report import Circumstances, ending, figures, points_of
from tollgate.tuning.search import CandidateResult, tune
from tollgate.tuning.space import Candidate

A, B = Candidate(0), Candidate(5000)
C, D = Candidate(5000, form="fused"), Candidate(0, form="fused")
PNG = b"\x89PNG\r\n\x1a\n"


def tried(
    candidate: Candidate, rung: int, *runs: tuple[float, float, float]
) -> CandidateResult:
    """Make up results: rate, p99, processor time of each run."""
    made = tuple(seen(rate, p99_ms=p99, cpu_s=cpu) for rate, p99, cpu in runs)
    return CandidateResult(
        candidate, rung, Measurement(made[0].rate_per_s, made[0], made)
    )


def test_the_front_is_what_nothing_beats_in_all() -> None:
    """One is slower at the same rate; one is dearer and slower; three are no worse."""
    points = points_of(
        [
            tried(A, 1, (100, 10, 1.0), (100, 12, 1.0), (200, 15, 2.0)),
            tried(B, 1, (150, 16, 2.5), (50, 10, 0.5)),
        ],
        limits=LIMITS,
    )
    figures_of = [
        (one.seen.rate_per_s, one.seen.p99_ms, one.on_front) for one in points
    ]
    assert figures_of == [
        (200, 15, True),
        (150, 16, False),
        (100, 10, True),
        (100, 12, False),
        (50, 10, True),
    ]


def test_broken_promises_and_short_runs_are_no_points() -> None:
    """Those of the first round are short, unless there was no other."""
    results = [tried(A, 1, (100, 10, 1), (300, 21, 1)), tried(B, 0, (200, 10, 1))]
    assert [one.seen.rate_per_s for one in points_of(results, limits=LIMITS)] == [100]
    alone = points_of(results[1:], limits=LIMITS)
    assert [one.seen.rate_per_s for one in alone] == [200]


def test_limits_are_the_aim_and_the_promise() -> None:
    """Of slo.yaml, unless somebody says another p99."""
    assert limits_of(Slo(), p99_ms=None) == LIMITS
    assert limits_of(Slo(), p99_ms=5.0).p99_ms == 5.0


def test_figures_are_medians_with_their_range() -> None:
    """Percentiles are never averaged."""
    found = [tried(A, 0, (rate, rate / 10, 1.0)).found for rate in (90, 200, 100)]
    assert figures(found) == (
        "100 (90 to 200) requests/s sustained, p50 3.3 (3.0 to 6.7) ms, "
        "p99 10.0 (9.0 to 20.0) ms, 1.00 (1.00 to 1.00) s of processor per 1,000 rows"
    )


def test_latency_one_after_the_other_is_described_too() -> None:
    """Where the comparison looked at it; under load nothing else is said."""
    found = tried(A, 0, (100, 10, 1.0)).found
    alone = [
        msgspec.structs.replace(found, alone=seen(0.0, p99_ms=p99)) for p99 in (3, 9, 6)
    ]
    words = "one after the other p50 2.0 (1.0 to 3.0) ms, p99 6.0 (3.0 to 9.0) ms"
    assert figures(alone) == f"{figures([found] * 3)}, {words}"


@pytest.mark.parametrize(
    ("base", "other", "line"),
    [
        (B, C, "form: fused is recommended, the server stays ensemble: `tollgate up"),
        (C, B, "form: fused is recommended, as it is served; ensemble is worse"),
        (A, D, "form: ensemble stays; fused is not better by more than chance"),
    ],
)
def test_the_recommended_form_ends_the_report(
    base: Candidate, other: Candidate, line: str
) -> None:
    """By capacity: B 371 and C 512 requests/s; D is a server as fast as A."""
    server = MadeUpServer()
    look = server.look()
    if other is D:  # the same runs for both

        def look(candidate: Candidate, **wanted: float) -> Measurement:
            return server.look()(A, **wanted)

    tuned = tune(look, base, [other], seconds=1.0, turns=3)
    around = Circumstances("here", "tollgate tune", "fraud-1", 1, LIMITS, "h2", 2.0)
    assert ending(tuned, around)[-1].startswith(line)


@pytest.mark.parametrize("others", [[A], [Candidate(5000, features_instances=2)]])
def test_a_tuning_is_drawn(tmp_path: Path, others: list[Candidate]) -> None:
    """With a comparison, and without one because all else was hopeless."""
    look = MadeUpServer(noise=0.02).look()
    tuned = tune(look, Candidate(5000), others, seconds=1.0, turns=3)
    points = points_of(tuned.tried, limits=LIMITS)
    path = tmp_path / "tuning.png"
    draw(tuned, points, path, limits=LIMITS, unit="requests/s")
    assert path.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("requests", "late", "met"),
    [(100, 1, True), (100, 2, False), (5000, 5, True), (5000, 6, False)],
)
def test_one_late_answer_in_a_short_run_is_forgiven(
    requests: int, late: int, met: bool
) -> None:
    """A run of 100 cannot show 99.9 %; one of 5,000 may have five."""
    run = msgspec.structs.replace(
        seen(float(requests), p99_ms=10.0),
        in_time_percent=100 * (requests - late) / requests,
    )
    assert LIMITS.meets(run) == met
