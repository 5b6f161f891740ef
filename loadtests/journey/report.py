"""Write the results of the journey: Markdown for people, JSON for programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import median_low

import msgspec

from loadtests.journey.equal import MOST_APART, Agreement
from loadtests.journey.same_rate import AtRate
from loadtests.journey.stages import DOOR, FORMS
from loadtests.journey.turns import Turn
from loadtests.results.markdown import markdown_table, spread
from tollgate.errors import InputError

# Scenario -> its column on the pages.
_COLUMNS = {
    "1-row-1": "1 in flight",
    "1-row-16": "16",
    "1-row-64": "64",
    "16-rows-8": "8 requests of 16 rows",
    "16-rows-4": "4 of 16 rows",
}
_ABOUT = {
    "naive": "FastAPI, pydantic, pandas",
    "standalone": "a week of one engineer, no library of ours",
    "lean": "one request at a time, our library",
    "gathered": "`lean` with batches",
    "ensemble": "Tollgate in three steps",
    "fused": "Tollgate in one process",
    "door": "the same, called over HTTP and JSON",
}
_PAGE, _README = "docs/journey.md", "README.md"
_FIGURES = re.compile(
    r"(<!-- figures: docs/journey.md -->\n).*?(<!-- figures: end -->)", re.DOTALL
)


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


def read_report(path: Path) -> JourneyReport:
    """
    Read the figures that `to_json` wrote.

    Raises:
        InputError: The file is missing, or holds something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=JourneyReport)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(path, str(error)) from error


def read_pages(checkout: Path) -> dict[Path, str]:
    """
    Read the README and docs/journey.md of a checkout.

    Raises:
        InputError: A page is missing, or lacks the comments around its figures.
    """
    texts = {}
    for path in (checkout / _PAGE, checkout / _README):
        try:
            texts[path] = path.read_text()
        except OSError as error:
            raise InputError(path, str(error)) from error
        found = len(_FIGURES.findall(texts[path]))
        if found != 1:
            raise InputError(path, f"has {found} places for the figures instead of 1")
    return texts


def fill_pages(checkout: Path, report: JourneyReport) -> None:
    """
    Write the figures into the README and docs/journey.md of a checkout.

    Raises:
        InputError: As `read_pages`.
    """
    page = [*_overview(report, page=True), ""]
    if report.rates:
        page += [*_rate_table(report.rates), ""]
    page += [*_conditions(report), ""]
    readme = [*_overview(report, page=False), ""]
    for (path, text), lines in zip(
        read_pages(checkout).items(), (page, readme), strict=True
    ):
        figures = "\n".join([*lines, ""])
        path.write_text(
            _FIGURES.sub(lambda match, new=figures: match[1] + new + match[2], text)
        )


def _overview(report: JourneyReport, *, page: bool) -> list[str]:
    """Write a row for each stage; the page has processor time and ranges, too."""
    scenarios = [
        one for one in _COLUMNS if any(turn.scenario == one for turn in report.turns)
    ]
    rows = []
    for stage, turns in _by_stage(report.turns).items():
        cells = []
        for scenario in scenarios:
            own = [turn for turn in turns if turn.scenario == scenario]
            cells.append(_cell(own, page=page) if own else "")
        about = "" if page else f": {_ABOUT.get(stage, stage)}"
        rows.append([f"`{stage}`{about}", *cells])
    head = ("service", *(_COLUMNS[one] for one in scenarios))
    return markdown_table(head, rows)


def _cell(turns: Sequence[Turn], *, page: bool) -> str:
    """Write decisions a second; p99 in ms; and, on the page, processor time in ms."""
    p99_ms = [turn.latency.p99_ms for turn in turns]
    figures = [
        ([turn.decisions_per_s for turn in turns], 0),
        (p99_ms, 0 if median_low(p99_ms) >= 100 else 1),
    ]
    if page:
        figures.append(([turn.cpu_ms for turn in turns], 2))
        if turns[0].scenario == "1-row-64":
            return "; ".join(spread(values, digits) for values, digits in figures)
    return "; ".join(
        f"{median_low(sorted(values)):,.{digits}f}" for values, digits in figures
    )


def _conditions(report: JourneyReport) -> list[str]:
    decisions = ", ".join(f"{n} {name}" for name, n in report.equal.decisions.items())
    return [
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


def to_markdown(report: JourneyReport) -> str:
    """Write the summary as Markdown, for people."""
    lines = [*_conditions(report), "", *_overview(report, page=True)]
    for scenario in dict.fromkeys(turn.scenario for turn in report.turns):
        turns = [turn for turn in report.turns if turn.scenario == scenario]
        lines += ["", f"### {scenario}", "", *_table(turns), *_failures(turns)]
        lines += ["", *_ratio_table(turns)]
    if report.rates:
        lines += ["", *_rate_table(report.rates)]
    return "\n".join([*lines, ""])


def _table(turns: Sequence[Turn]) -> list[str]:
    head = (
        *("stage", "requests/s", "decisions/s", "p50 ms", "p99 ms"),
        *("CPU ms per decision", "service MB", "store MB", "failed", "degraded"),
        "rows per batch",
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
            spread([turn.batch_rows for turn in own], 1) if own[0].batch_rows else "",
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
    """Compare each form with the stages before it, round by round: its / theirs."""
    figures = (
        lambda turn: turn.requests_per_s,
        lambda turn: turn.latency.p50_ms,
        lambda turn: turn.latency.p99_ms,
        lambda turn: turn.cpu_ms,
    )
    rows = []
    for (name, theirs), (form, own) in combinations(_by_stage(turns).items(), 2):
        if form.partition(":")[0] in (*FORMS, DOOR):
            pairs = list(zip(own, theirs, strict=True))
            ratios = [
                spread([figure(one) / figure(other) for one, other in pairs], 2)
                for figure in figures
            ]
            rows.append([f"{form} / {name}", *ratios])
    head = ("ratio", "requests/s", "p50", "p99", "CPU per decision")
    return markdown_table(head, rows)


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
