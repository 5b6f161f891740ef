"""
Results that callers see while processes are killed: `python -m loadtests.recovery`.

`tollgate up` under a steady load of single rows; each Python step (three times in a
row), tritonserver and Redis get SIGKILL in random order until the time is over, each
one once the previous has recovered, without human help. Prints the table of
docs/reliability.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter

import msgspec
import numpy as np

from loadtests.faults import WHOLE_IN_A_ROW
from loadtests.harness import (
    REPOSITORY,
    Population,
    Report,
    StoreContents,
    add_form,
    command_parser,
    run_command,
    temporary_folder,
)
from loadtests.requests.bodies import fraud_requests
from loadtests.results.markdown import markdown_table
from tollgate.load.arrivals import evenly
from tollgate.load.asyncio_sender import send
from tollgate.load.results import Results
from tollgate.load.surroundings import measured_on
from tollgate.repository.slo import Form
from tollgate.testing.supervised import Supervised, supervised

_TIMEOUT_S = 1.0
_MOST_S = 30.0  # limit of a recovery, before it counts as never
# The models that have a process of their own, by form.
_STEPS: Mapping[Form, Sequence[str]] = {
    "ensemble": ("fraud_features", "fraud_decision"),
    "fused": ("fraud",),
}
_TIMES = 3  # number of times that the same step is killed in a row


class Kill(msgspec.Struct, frozen=True):
    """One kill: its target, and its time on time.perf_counter."""

    part: str
    at_s: float


def main(arguments: Sequence[str]) -> int:
    """
    Kill until the time is over, print the table; exit status 1 if one did not recover.
    """
    parser = command_parser("recovery")
    add_form(parser)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--seed", type=int, default=1)
    return run_command(parser, arguments, measure=measure)


def measure(options: argparse.Namespace) -> Report:
    """Serve, load and kill; write the table."""
    with (
        temporary_folder("recovery") as folder,
        supervised(
            REPOSITORY, state=folder / "state", words=("up", "--form", options.form)
        ) as product,
    ):
        kills, sent = asyncio.run(_kill_under_load(product, options))
    recovery_s = [_recovery_s(kill, sent) for kill in kills]
    text = to_markdown(kills, recovery_s, sent)
    return Report(
        f"{text}\n{measured_on()}. `{options.command}`",
        ok=all(one is not None for one in recovery_s),
    )


async def _kill_under_load(
    product: Supervised, options: argparse.Namespace
) -> tuple[list[Kill], Results]:
    traffic = StoreContents(Population(300, 600, days=7)).traffic
    columns = traffic.columns(0, round((options.seconds + _MOST_S) * options.rate))
    requests = fraud_requests(columns, rows=1, deadline_s=_TIMEOUT_S)
    enough = asyncio.Event()
    loading = asyncio.ensure_future(
        send(
            requests,
            grpc_url=product.grpc_url,
            at_s=evenly(len(requests), rate_per_s=options.rate),
            timeout_s=_TIMEOUT_S,
            enough=enough,
        )
    )
    chance = random.Random(options.seed)
    until_s = perf_counter() + options.seconds
    kills: list[Kill] = []
    for part in _order(chance, _STEPS[options.form]):
        await asyncio.sleep(chance.uniform(0.5, 3.0))
        if perf_counter() > until_s or loading.done():
            break
        mended = len(product.recovered_parts())
        os.kill(product.pid(part), signal.SIGKILL)
        kills.append(Kill(part, perf_counter()))
        await asyncio.to_thread(product.wait_recovered, mended + 1, patience_s=_MOST_S)
    enough.set()
    return kills, await loading


def _order(chance: random.Random, steps: Sequence[str]) -> Iterator[str]:
    """
    Yield the targets of the kills, without end; a step comes three times in a row.
    """
    while True:
        parts = [*steps, "tritonserver", "redis-server"]
        chance.shuffle(parts)
        for part in parts:
            yield from [part] * (_TIMES if part in steps else 1)


def _recovery_s(kill: Kill, sent: Results) -> float | None:
    """
    Return the time from a kill to the first of many answers in a row; None for never.
    """
    after = np.flatnonzero(sent.due_s >= kill.at_s)
    in_a_row = 0
    for place in after.tolist():
        in_a_row = in_a_row + 1 if sent.answered[place] else 0
        if in_a_row == WHOLE_IN_A_ROW:
            first = place - WHOLE_IN_A_ROW + 1
            ended_s = float(sent.due_s[first] + sent.latency_s[first])
            return ended_s - kill.at_s
    return None


def to_markdown(
    kills: Sequence[Kill], recovery_s: Sequence[float | None], sent: Results
) -> str:
    """Write a line per kind of process."""
    head = ("killed", "times", "recovered", "median s", "longest s", "not answered")
    rows = []
    edges = [*(kill.at_s for kill in kills), np.inf]
    for part in dict.fromkeys(kill.part for kill in kills):
        mine = [place for place, kill in enumerate(kills) if kill.part == part]
        times = [recovery_s[place] for place in mine]
        known = sorted(time for time in times if time is not None)
        lost = sum(
            int(
                (
                    ~sent.answered[
                        (sent.due_s >= edges[place]) & (sent.due_s < edges[place + 1])
                    ]
                ).sum()
            )
            for place in mine
        )
        middle = f"{known[len(known) // 2]:.2f}" if known else ""
        longest = f"{known[-1]:.2f}" if known else ""
        rows.append((part, len(times), len(known), middle, longest, lost))
    answered = int(sent.answered.sum())
    lines = [
        *markdown_table(head, rows),
        "",
        f"{len(sent.due_s):,} requests sent, {answered:,} answered.",
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
