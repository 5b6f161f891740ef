"""Write the tables of a report: the same for Markdown and for the HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from loadtests.paced.raw import STEPS, Server
from loadtests.pages.figures import Figures, Group, Part
from loadtests.results.markdown import share, spread


class Table(msgspec.Struct, frozen=True):
    """
    A table.

    Attributes:
        note: Explanation of the table; may be empty.
        head: Heads of the columns.
        rows: Cells as text; the first of each row names the row.
    """

    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Column(msgspec.Struct, frozen=True):
    """A figure: its head, its function, digits after the point."""

    head: str
    of: Callable[[Figures], float]
    digits: int


def cells_of(columns: Sequence[Column], runs: Sequence[Figures]) -> tuple[str, ...]:
    """Format the median and range of each figure."""
    return tuple(spread([one.of(run) for run in runs], one.digits) for one in columns)


def worst_share(runs: Sequence[Figures], figure: Callable[[Figures], float]) -> str:
    """Format the largest share: a failure in one run counts."""
    worst = max(runs, key=figure)
    return share(round(figure(worst) * 1e9), 10**9)


def errors_table(runs: Sequence[Figures]) -> Table:
    """Show how requests failed."""
    return Table(
        title="Requests without an answer",
        note="By kind; how long their callers waited to hear of it.",
        head=(
            "file",
            "kind",
            "requests",
            "share",
            "p50 ms",
            "p99 ms",
            "max ms",
            "words",
        ),
        rows=tuple(
            (
                *(one.name, kind.name, f"{kind.count:,}"),
                share(kind.count, one.requests),
                f"{kind.latency.p50_ms:.1f}",
                f"{kind.latency.p99_ms:.1f}",
                f"{kind.latency.max_ms:.1f}",
                kind.example[:100].replace("|", "/").replace("\n", " "),
            )
            for one in runs
            for kind in one.errors
        ),
    )


def reasons_table(runs: Sequence[Figures]) -> Table:
    """Show why answers were degraded."""
    return Table(
        title="Degraded answers",
        note="Requests with a row that has the bit; COLD_START is no fault.",
        head=("file", "bit", "requests", "share"),
        rows=tuple(
            (one.name, bit, f"{count:,}", share(count, one.requests))
            for one in runs
            for bit, count in one.reasons.items()
        ),
    )


def poison_table(runs: Sequence[Figures]) -> Table:
    """Show the results of bad rows."""
    return Table(
        title="Bad rows",
        note="Rows that break a rule of the contract, and what became of them and of "
        "the good ones.",
        head=("file", "bad rows", "refused", "good rows refused"),
        rows=tuple(
            (
                *(one.name, f"{one.poison.bad:,}", f"{one.poison.bad_refused:,}"),
                f"{one.poison.good_refused:,}",
            )
            for one in runs
            if one.poison.bad or one.poison.good_refused
        ),
    )


_SUMMARY = (
    Column("requests/s due", lambda one: one.rates.requests_due, 0),
    Column("decisions/s due", lambda one: one.rates.decisions_due, 0),
    Column("requests/s", lambda one: one.rates.requests, 0),
    Column("decisions/s", lambda one: one.rates.decisions, 0),
    Column("p50 ms", lambda one: one.latency.p50_ms, 1),
    Column("p90 ms", lambda one: one.latency.p90_ms, 1),
    Column("p99 ms", lambda one: one.latency.p99_ms, 1),
    Column("p99.9 ms", lambda one: one.latency.p999_ms, 1),
    Column("max ms", lambda one: one.latency.max_ms, 1),
)
_WORK = (
    Column("server CPU ms per request", lambda one: _cpu_ms(one), 2),
    Column("rows per feature batch", lambda one: _rows_per(one, "feature_batches"), 1),
    Column("rows per model batch", lambda one: _rows_per(one, "model_batches"), 1),
    Column("values written per purchase", lambda one: _per_purchase(one, "writes"), 2),
    Column("journalled per purchase", lambda one: _per_purchase(one, "journalled"), 3),
    Column("PSS MB", lambda one: _server(one).pss_mb, 0),
)
_SENDER = (
    Column("sent late p50 ms", lambda one: one.late.p50_ms, 2),
    Column("p99 ms", lambda one: one.late.p99_ms, 2),
    Column("max ms", lambda one: one.late.max_ms, 1),
    Column("sender's CPU s", lambda one: one.raw.about.sender_cpu_s, 1),
    Column("attempts per request", lambda one: one.attempts, 2),
)


def tables_of(groups: Sequence[Group]) -> list[Table]:
    """Return all tables that have rows."""
    runs = [one for group in groups for one in group.runs]
    found = [
        _summary(groups),
        _by_run(runs),
        errors_table(runs),
        reasons_table(runs),
        poison_table(runs),
        *[_parts(group) for group in groups if len(group.runs[0].parts) > 1],
        _layers(groups),
        _at_once(groups),
        _work(groups),
        _sender(runs),
    ]
    return [table for table in found if table.rows]


def _summary(groups: Sequence[Group]) -> Table:
    return Table(
        title="Summary",
        note="Median (lowest … highest) of the runs; without an answer, refused and "
        "degraded: the worst run. Of fewer than 1,000 requests p99.9 is the slowest.",
        head=(
            *("scenario", "runs", *(one.head for one in _SUMMARY)),
            *("without an answer", "rows refused", "degraded"),
        ),
        rows=tuple(
            (
                *(group.title, str(len(group.runs)), *cells_of(_SUMMARY, group.runs)),
                worst_share(group.runs, lambda one: one.failed),
                worst_share(group.runs, lambda one: one.refused),
                worst_share(group.runs, lambda one: one.degraded),
            )
            for group in groups
        ),
    )


def _by_run(runs: Sequence[Figures]) -> Table:
    return Table(
        title="Run by run",
        note="",
        head=("file", "requests", *(one.head for one in _SUMMARY)),
        rows=tuple(
            (one.name, f"{one.requests:,}", *cells_of(_SUMMARY, [one])) for one in runs
        ),
    )


def _parts(group: Group) -> Table:
    return Table(
        title=f"Parts of {group.title}",
        note="By when requests were due; requests and decisions per second by when "
        "answers came. Shares are of decided rows.",
        head=(
            *("seconds", "", "requests/s due", "decisions/s due"),
            *("requests/s", "decisions/s", "p50 ms", "p99 ms", "max ms"),
            *("without an answer", "degraded", "reviewed", "declined"),
        ),
        rows=tuple(
            _part([run.parts[place] for run in group.runs])
            for place in range(len(group.runs[0].parts))
        ),
    )


def _part(parts: Sequence[Part]) -> tuple[str, ...]:
    first = parts[0]
    rates = [one.rates for one in parts]
    known = [one.latency for one in parts if one.latency is not None]
    return (
        f"{round(first.from_s, 1):g} to {round(first.until_s, 1):g}",
        first.words,
        spread([one.requests_due for one in rates], 0),
        spread([one.decisions_due for one in rates], 0),
        spread([one.requests for one in rates], 0),
        spread([one.decisions for one in rates], 0),
        spread([one.p50_ms for one in known], 1) if known else "none",
        spread([one.p99_ms for one in known], 1) if known else "none",
        spread([one.max_ms for one in known], 1) if known else "none",
        spread([one.failed for one in parts], 0),
        *(
            spread([100 * getattr(one, name) for one in parts], 2) + " %"
            for name in ("degraded", "reviewed", "declined")
        ),
    )


def _layers(groups: Sequence[Group]) -> Table:
    rows = []
    for group in groups:
        runs = [one for one in group.runs if one.layers]
        for layer in runs[0].layers if runs else ():
            p50_ms, p99_ms = zip(*(one.layers[layer] for one in runs), strict=True)
            requests = spread([one.layer_requests for one in runs], 0)
            cells = (spread(p50_ms, 2), spread(p99_ms, 2), requests)
            rows.append((group.title, layer, *cells))
    return Table(
        title="Layers",
        note="Of answered requests, from their being sent; docs/budget.md says where "
        "they are cut. `request` is a mean, the same for all. Percentiles of layers do "
        "not add up.",
        head=("scenario", "layer", "p50 ms", "p99 ms", "requests"),
        rows=tuple(rows),
    )


def _at_once(groups: Sequence[Group]) -> Table:
    """Show the share of time in which steps had a batch in hand, and how many did."""
    rows = []
    for group in groups:
        overlaps = [one.at_once for one in group.runs if one.at_once is not None]
        if overlaps:
            shares = [
                *([one.busy[step] for one in overlaps] for step in STEPS),
                *([one.together[n] for one in overlaps] for n in range(len(STEPS) + 1)),
            ]
            cells = [spread([100 * share for share in many], 1) for many in shares]
            rows.append((group.title, *cells))
    return Table(
        title="Steps at work",
        note="Shares of the measured time, %: in which a step had a batch in hand, and "
        "in which none of them had, one, two or three. Two at once are two batches: a "
        "request is in one step at a time.",
        head=("scenario", *STEPS, "none", "one", "two", "three"),
        rows=tuple(rows),
    )


def _work(groups: Sequence[Group]) -> Table:
    counted = [
        (group, runs)
        for group in groups
        if (runs := [one for one in group.runs if one.raw.about.server is not None])
    ]
    return Table(
        title="Work",
        note="As the server counted, warm-up included; CPU and memory are those of "
        "tritonserver, its steps and Redis. A purchase that is applied writes a value "
        "for each entity, and its decision.",
        head=("scenario", *(one.head for one in _WORK)),
        rows=tuple((group.title, *cells_of(_WORK, runs)) for group, runs in counted),
    )


def _sender(runs: Sequence[Figures]) -> Table:
    return Table(
        title="The sender",
        note="How late requests left, which their latency includes.",
        head=("file", "driver", *(one.head for one in _SENDER)),
        rows=tuple(
            (one.name, one.raw.about.driver, *cells_of(_SENDER, [one])) for one in runs
        ),
    )


def _server(one: Figures) -> Server:
    assert one.raw.about.server is not None
    return one.raw.about.server


def _cpu_ms(one: Figures) -> float:
    return 1e3 * _server(one).cpu_s / max(1, len(one.raw.calls))


def _rows_per(one: Figures, name: str) -> float:
    return _server(one).purchases / max(1, getattr(_server(one), name))


def _per_purchase(one: Figures, name: str) -> float:
    return getattr(_server(one), name) / max(1, _server(one).purchases)
