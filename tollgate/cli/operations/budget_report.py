"""Print the result of `budget`: time per layer, and Triton's statistics per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from tollgate.cli import console

if TYPE_CHECKING:
    from tollgate.cli.operations.slo_limits import Promise
    from tollgate.latency_budget.layers import Judged
    from tollgate.latency_budget.measurement import Measured
    from tollgate.load.arrivals import F64

_PERCENTILES = (50, 99)


def to_json(
    found: Measured,
    judged: list[Judged],
    promise: Promise,
    *,
    in_time: float,
    broken: list[str],
) -> dict[str, Any]:
    """Convert the result to a dictionary with a name for every value, for programs."""
    mean_ms, p50_ms, p99_ms = _mean_and_percentiles(found.split.in_server_ms)
    product, *steps = found.counts
    return {
        "load": found.load,
        "layers": judged,
        "in_server": {"mean_ms": mean_ms, "p50_ms": p50_ms, "p99_ms": p99_ms},
        "triton_mean_ms": found.counts[product].whole_ms,
        "steps": {
            step: {
                "requests": found.counts[step].requests,
                "rows_per_batch": found.counts[step].rows_per_batch,
                "queue_ms": found.counts[step].queue_ms,
                "work_ms": found.counts[step].work_ms,
                "busy": found.at_once.busy[step],
            }
            for step in steps
        },
        "busy_together": found.at_once.together,
        "requests_of_others": found.others,
        "lost_batches": found.lost,
        "sender": found.sender,
        "in_time_percent": in_time,
        "within_ms": promise.within_ms,
        "broken": broken,
    }


def print_layers(
    found: Measured, judged: list[Judged], promise: Promise, *, in_time: float
) -> None:
    """Print the budget next to the measured times, and the load that was sent."""
    table = _table("layer", "budget ms", "mean ms", "p50 ms", "p99 ms", "")
    for one in judged:
        cells = [_ms(x) for x in (one.limit_ms, one.mean_ms, one.p50_ms, one.p99_ms)]
        table.add_row(one.layer, *cells, "broken" if one.broken else "")
    table.add_row("reserve", _ms(promise.layers_ms.reserve), "", "", "", "")
    in_server = map(_ms, _mean_and_percentiles(found.split.in_server_ms))
    table.add_row("in the server", "", *in_server, "")
    late = map(_ms, _mean_and_percentiles((found.sent.sent_s - found.sent.due_s) * 1e3))
    table.add_row("sent late", "", *late, "")
    whole = map(_ms, _mean_and_percentiles(found.sent.latency_s * 1e3))
    table.add_row("whole", _ms(promise.within_ms), *whole, "")
    console.out.print(table)
    load = found.load
    console.out.print(
        f"{len(found.sent.due_s):,} requests of {load.rows} rows at "
        f"{load.rate_per_s:g} per second, {'dry' if load.dry else 'applied'}, "
        f"{found.sender} sender; {in_time:.2f} % decided within "
        f"{promise.within_ms:g} ms, {promise.percent:g} % are promised",
        highlight=False,
    )


def print_steps(found: Measured) -> None:
    """Print Triton's statistics of each step, and how many instances worked at once."""
    product, *steps = found.counts
    table = _table("step", "rows per batch", "queue ms", "work ms", "busy %")
    for step in steps:
        counts, busy = found.counts[step], found.at_once.busy[step]
        cells = (counts.rows_per_batch, counts.queue_ms, counts.work_ms, 100 * busy)
        table.add_row(step, *map(_ms, cells))
    console.out.print()
    console.out.print(table)
    _, one, *more = (100 * share for share in found.at_once.together)
    line = (
        f"one step busy {one:.1f} % of the time, several at once {sum(more):.1f} %; "
        f"Triton's own mean of {product} is {found.counts[product].whole_ms:.1f} ms"
    )
    if found.others:
        line += f"; {found.others:,} requests of others are in Triton's means"
    if found.lost:
        line += f"; {found.lost:,} batches were not reported"
    console.out.print(line, highlight=False)


def _mean_and_percentiles(values: F64) -> tuple[float, float, float]:
    """Format mean, median and 99th percentile."""
    p50, p99 = np.percentile(values, _PERCENTILES).tolist()
    return float(values.mean()), p50, p99


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place and column else "left")
    return table
