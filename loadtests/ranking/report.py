"""Write the tables of docs/ranking.md: latency, truth and faults of lists."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadtests.chaos import GRACE_S
from loadtests.ranking.faults import FaultOutcome
from loadtests.ranking.latency import GOAL_P95_MS, LatencyRun
from loadtests.ranking.truth import Truth
from loadtests.results.markdown import markdown_table, share, spread
from tollgate.repository.slo import Form


class FormLatency(msgspec.Struct, frozen=True):
    """
    Latency of one kind of traffic in one form.

    Attributes:
        traffic: Kind of the requests.
        runs: Runs at the same rate.
        highest: The run at the highest rate that the search found; None for none.
        search: All runs of the search.
    """

    form: Form
    traffic: str
    runs: list[LatencyRun]
    highest: LatencyRun | None
    search: list[LatencyRun]


class RankingReport(msgspec.Struct, frozen=True):
    """
    Results of the command.

    Attributes:
        shop: Description of users, items and events.
        surroundings: Date, commit, machine and versions.
        command: The command line.
        deadline_s: Of a call in `faults`.
        latency: By form and traffic.
        truth: By form.
        faults: By form.
    """

    shop: str
    surroundings: str
    command: str
    deadline_s: float
    latency: list[FormLatency]
    truth: dict[Form, Truth]
    faults: dict[Form, list[FaultOutcome]]

    @property
    def ok(self) -> bool:
        """Return whether every proof holds."""
        outcomes = [one for form in self.faults.values() for one in form]
        return all(one.ok for one in (*self.truth.values(), *outcomes))


def to_markdown(report: RankingReport) -> str:
    """Write the tables of the parts that ran, and a description below them."""
    parts = []
    if report.latency:
        parts.append(_latency_table(report.latency))
    if report.truth:
        parts.append(_truth_table(report.truth))
    if report.faults:
        parts.append(_fault_table(report.faults, deadline_s=report.deadline_s))
    parts.append(
        [
            f"{report.surroundings}. {report.shop}. `{report.command}`. Sender, server "
            "and store share the machine."
        ]
    )
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _latency_table(latency: Sequence[FormLatency]) -> list[str]:
    head = (
        *("form", "lists", "requests/s", "p50 ms", "p95 ms", "p99 ms", "answered"),
        *(
            "degraded",
            "hits",
            "server and store, cores",
            "sender, cores",
            "load before",
        ),
        f"highest rate with p95 ≤ {GOAL_P95_MS:g} ms",
    )
    rows = []
    for one in latency:
        runs = one.runs
        sent = sum(run.sent for run in runs)
        cells = (
            *(one.form, one.traffic, f"{runs[0].rate:g}"),
            *(spread([run.p50_ms for run in runs], 1),),
            *(spread([run.p95_ms for run in runs], 1),),
            *(spread([run.p99_ms for run in runs], 1),),
            share(sum(run.answered for run in runs), sent),
            share(sum(run.degraded for run in runs), sent),
            spread([100 * run.hits for run in runs], 1) + " %",
            spread([run.server_cpu for run in runs], 2),
            spread([run.sender_cpu for run in runs], 2),
            spread([run.load for run in runs], 1),
            _highest(one),
        )
        rows.append(cells)
    return markdown_table(head, rows)


def _highest(one: FormLatency) -> str:
    if not one.search:
        return "not searched"
    if one.highest is None:
        return f"below {one.search[0].rate:g}"
    return f"{one.highest.rate:g} ({one.highest.p95_ms:.1f} ms)"


def _truth_table(truth: dict[Form, Truth]) -> list[str]:
    head = (
        *(
            "form",
            "lists",
            "of these prepared",
            "went out of stock",
            "purchases",
            "withheld: out, bought",
        ),
        *("shown: out for longer than stated", "stated s", "longest s seen"),
        *("shown: bought", "degraded lists", "bought shown in these", "proven"),
    )
    rows = []
    for form, one in truth.items():
        cells = (
            *(
                form,
                f"{one.lists:,}",
                f"{one.prepared:,}",
                f"{one.changes:,}",
                f"{one.purchases:,}",
            ),
            f"{one.withheld_out:,}, {one.withheld_bought:,}",
            *(one.out_shown, f"{one.staleness_s:g}", f"{one.oldest_s:.3f}"),
            *(one.bought_shown, one.degraded, one.degraded_bought),
            "yes" if one.ok else "no",
        )
        rows.append(cells)
    return markdown_table(head, rows)


def _fault_table(
    faults: dict[Form, list[FaultOutcome]], *, deadline_s: float
) -> list[str]:
    grace = f"{deadline_s * 1e3:g} + {GRACE_S * 1e3:g} ms"
    head = (
        *("form", "fault", "calls", "without their items", "out of stock shown"),
        *("by server, client", "by server during the fault", "items by source"),
        *(f"within {grace}", "p50 ms", "p99 ms", "maximum ms", "load", "proven"),
    )
    rows = []
    for form, outcomes in faults.items():
        for one in outcomes:
            server, during = one.during
            sources = ", ".join(f"{name} {n:,}" for name, n in one.sources.items())
            cells = (
                *(form, one.fault.words, f"{one.calls:,}"),
                *(one.failed + one.short + one.unnamed, one.out_shown),
                f"{one.lists.get('server', 0):,}, {one.lists.get('client', 0):,}",
                *(share(server, during), sources, share(one.in_time, one.calls)),
                *(f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}", f"{one.max_ms:.1f}"),
                *(f"{one.load:.1f}", "yes" if one.ok else "no"),
            )
            rows.append(cells)
    return markdown_table(head, rows)
