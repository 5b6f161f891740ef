"""Write tables of failures: missing answers, degraded answers, bad rows."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.pages.cells import Table
from loadtests.pages.figures import Figures
from loadtests.report import share


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
