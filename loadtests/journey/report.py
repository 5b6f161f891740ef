"""Write the results of the journey: Markdown for people, JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median_low

import msgspec

from loadtests.journey.equal import MOST_APART, Agreement
from loadtests.journey.same_rate import AtRate
from loadtests.journey.stages import PARTS
from loadtests.journey.turns import Turn
from loadtests.results.markdown import markdown_table, spread

_REST = "the rest"  # HTTP or gRPC, parsing, queues


class JourneyReport(msgspec.Struct, frozen=True):
    """
    Results of a complete journey.

    Attributes:
        measured_on: Date, commit and machine.
        history: Description of the stores' contents before.
        warm_up_s: Warm-up of each turn, s.
        measured_s: Measured time of each turn, s.
        equal: Result of the comparison of answers.
        turns: Turns in the order in which they were taken.
        rates: Results of the open loop, in the order in which they were taken.
    """

    measured_on: str
    command: str
    history: str
    warm_up_s: float
    measured_s: float
    equal: Agreement
    turns: tuple[Turn, ...]
    rates: tuple[AtRate, ...]


def to_json(report: JourneyReport) -> bytes:
    """Write all figures as JSON, for programs."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def to_markdown(report: JourneyReport) -> str:
    """Write the summary as Markdown, for people."""
    decisions = ", ".join(f"{n} {name}" for name, n in report.equal.decisions.items())
    lines = [
        f"Measured {report.measured_on}; services, stores and generator share it.",
        "",
        f"* Command: `{report.command}`",
        f"* Answers compared before: {report.equal.rows} purchases to every stage, the "
        f"same decisions ({decisions} in the first half) and reason codes, scores at "
        f"most {report.equal.apart:.1e} apart ({MOST_APART:g} is allowed).",
        f"* Stores before: {report.history}, in each stage's own layout and Redis.",
        f"* Closed loop: turns of {report.warm_up_s:g} s warm-up and "
        f"{report.measured_s:g} s measured, stage after stage; every request new "
        "purchases.",
        "* Figures: median (lowest … highest) of the turns; percentiles from the raw "
        "samples of each turn.",
    ]
    for scenario in dict.fromkeys(turn.scenario for turn in report.turns):
        turns = [turn for turn in report.turns if turn.scenario == scenario]
        lines += ["", f"### {scenario}", "", *_table(turns), *_failures(turns)]
        lines += ["", *_ratio_table(turns), "", *_parts_table(turns)]
    if report.rates:
        lines += ["", *_rate_table(report.rates)]
    return "\n".join([*lines, ""])


def _table(turns: Sequence[Turn]) -> list[str]:
    head = (
        *("stage", "requests/s", "decisions/s", "p50 ms", "p99 ms"),
        *("CPU ms per decision", "service MB", "store MB", "failed", "degraded"),
    )
    rows = [
        [
            stage,
            spread([turn.requests_per_s for turn in own], 0),
            spread([turn.decisions_per_s for turn in own], 0),
            spread([turn.latency.p50_ms for turn in own], 1),
            spread([turn.latency.p99_ms for turn in own], 1),
            spread([turn.cpu_ms for turn in own], 2),
            f"{max(turn.service_mb for turn in own):.0f}",
            f"{max(turn.store_mb for turn in own):.0f}",
            str(sum(turn.failed for turn in own)),
            f"{max(turn.degraded_share for turn in own):.1%}",
        ]
        for stage, own in _by_stage(turns).items()
    ]
    return markdown_table(head, rows)


def _failures(turns: Sequence[Turn]) -> list[str]:
    """List the reasons of failed requests, if any."""
    found: Counter[tuple[str, str]] = Counter()
    for turn in turns:
        for reason, count in turn.failures.items():
            found[turn.stage, reason] += count
    lines = [f"* `{stage}`, {count}: {one}" for (stage, one), count in found.items()]
    return ["", *lines] if lines else []


def _ratio_table(turns: Sequence[Turn]) -> list[str]:
    """Compare the last stage with each other one, turn by turn: its figure / theirs."""
    *others, (judged, own) = _by_stage(turns).items()
    rows = [
        [
            f"{judged} / {stage}",
            *(
                spread(
                    [
                        figure(ours) / figure(theirs)
                        for ours, theirs in zip(own, turns_of, strict=True)
                    ],
                    2,
                )
                for figure in (
                    lambda turn: turn.requests_per_s,
                    lambda turn: turn.latency.p50_ms,
                    lambda turn: turn.latency.p99_ms,
                    lambda turn: turn.cpu_ms,
                )
            ),
        ]
        for stage, turns_of in others
    ]
    head = ("ratio", "requests/s", "p50", "p99", "CPU per decision")
    return markdown_table(head, rows)


def _parts_table(turns: Sequence[Turn]) -> list[str]:
    """Write the mean time of a request in each part, ms."""
    rows = []
    for stage, own in _by_stage(turns).items():
        parts = [median_low([turn.parts_ms[part] for turn in own]) for part in PARTS]
        rest = median_low([turn.mean_ms - sum(turn.parts_ms.values()) for turn in own])
        rows.append([stage, *(f"{ms:.2f}" for ms in (*parts, rest))])
    return markdown_table(("mean ms in", *PARTS, _REST), rows)


def _rate_table(rates: Sequence[AtRate]) -> list[str]:
    head = ("stage", "p50 ms", "p99 ms", "max ms", "unanswered")
    rows = [
        [
            stage,
            spread([one.latency.p50_ms for one in own], 1),
            spread([one.latency.p99_ms for one in own], 1),
            f"{max(one.latency.max_ms for one in own):.1f}",
            str(sum(one.unanswered for one in own)),
        ]
        for stage, own in _by_stage(rates).items()
    ]
    title = f"### The same {rates[0].rate_per_s:g} a second to each, open loop"
    return [title, "", *markdown_table(head, rows)]


def _by_stage(measured: Sequence) -> dict[str, list]:
    found: dict[str, list] = {}
    for one in measured:
        found.setdefault(one.stage, []).append(one)
    return found
