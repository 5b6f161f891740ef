"""
Unforeseen errors in every background loop: `python -m loadtests.unforeseen`.

`tollgate up` answers requests at a steady rate. Once in each interval every background
loop of the supervisor, of the server and of each step gets an error that none of our
code expects (loadtests/servers/injection.py). The command reports lost answers,
decisions without a record in the journal, and for each loop the errors injected, the
errors that the metrics pages count, and whether it works since. Exit status 1 if any of
this is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import sys
import sysconfig
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import msgspec
import redis

from loadtests.harness import (
    REPOSITORY,
    Report,
    command_parser,
    run_command,
    temporary_folder,
)
from loadtests.requests.steady_caller import SteadyCaller
from loadtests.results.surroundings import CHECKOUT
from loadtests.servers.injection import ROUND_FILE, LoopReport, reports
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.server.address import find_server
from tollgate.testing.supervised import Supervised
from tollgate.worker import ERRORS_METRIC
from tollgate_client.addresses import CHANNEL_OPTIONS

PRODUCT = "fraud"
_TIMEOUT_S = 20.0
_READY_S = 600.0  # on a busy machine
_SETTLE_S = 120.0
_READ_S = 2.0  # between two reads of the journal's stream
_READ_AT_ONCE = 1_000
_COUNTED = re.compile(rf'^{ERRORS_METRIC}{{.*?loop="([^"]+)".*}} (\S+)$', re.MULTILINE)


class LoopFigures(msgspec.Struct, frozen=True):
    """
    Results of the loops of one name, in all processes together.

    Attributes:
        name: Name of the loop.
        counted: Number of errors on the metrics pages.
        loops: Number of these loops in live processes.
        alive: Number of these that have worked since their last error.
    """

    name: str
    injected: int
    counted: int
    loops: int
    alive: int

    @property
    def ok(self) -> bool:
        """Return whether it got errors, all are counted, and it works."""
        return self.injected == self.counted > 0 and self.alive == self.loops > 0


class Figures(msgspec.Struct, frozen=True):
    """
    Results of the run.

    Attributes:
        rounds: Number of errors injected in every loop.
        lost: Requests without a decision, by status and message.
        unrecorded: Requests with a decision that the journal does not have.
        recorded: Decisions in the journal, each transaction once.
        loops: Results of the loops, by name.
        recovered: Parts that the supervisor recovered.
    """

    seconds: float
    rounds: int
    sent: int
    lost: Counter[str]
    unrecorded: int
    recorded: int
    loops: list[LoopFigures]
    recovered: list[str]

    @property
    def ok(self) -> bool:
        """Return whether everything is right."""
        well = bool(self.loops) and all(one.ok for one in self.loops)
        return well and not (self.lost or self.unrecorded or self.recovered)


def main(arguments: Sequence[str]) -> int:
    """Run and report; exit status 1 if anything is wrong."""
    parser = command_parser("unforeseen")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=200.0, help="requests/s")
    parser.add_argument(
        "--every", type=float, default=60.0, help="seconds between two errors of a loop"
    )
    return run_command(parser, arguments, measure=measure)


def measure(options: argparse.Namespace) -> Report:
    """Run, and write the report."""
    figures = run(options)
    return Report(to_text(figures), ok=figures.ok)


def run(options: argparse.Namespace) -> Figures:
    """Serve the product with errors in its loops while requests are sent."""
    with temporary_folder("unforeseen") as folder:
        state, rounds = folder / "state", folder / "rounds"
        rounds.mkdir()
        inject_in_steps(state, rounds)
        product = Supervised(
            REPOSITORY,
            state,
            environment=injecting(folder / "python", rounds),
        )
        try:
            product.wait(
                lambda: bool(product.health_url) and product.ready(),
                patience_s=_READY_S,
            )
            return asyncio.run(_measure(options, product, rounds))
        finally:
            product.stop()


def inject_in_steps(state: Path, rounds: Path) -> None:
    """Make each step import the injection: a stub reads the .pth files there."""
    packages = Path("lib", f"python{sysconfig.get_python_version()}", "site-packages")
    place = state / "server" / "python" / packages
    place.mkdir(parents=True)
    (place / "unforeseen.pth").write_text(f"import sys; {_code(rounds)}\n")


def injecting(folder: Path, rounds: Path) -> dict[str, str]:
    """Return an environment in which the supervisor imports the injection."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import sys\n{_code(rounds)}\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _code(rounds: Path) -> str:
    return (
        f"sys.path.append({str(CHECKOUT)!r}); "
        f"from loadtests.servers import injection; injection.install({str(rounds)!r})"
    )


class JournalReader:
    """
    Reads the journal's stream as its worker does: it removes the entries that it reads.

    Args:
        url: Address of the embedded store.

    Attributes:
        found: Transaction ids of all decisions in the stream.
    """

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url)
        self._last = b"0-0"
        self.found: set[bytes] = set()

    def read(self) -> None:
        """Read new entries; raise errors of Redis or of a damaged chunk."""
        key = stream_key(PRODUCT)
        while entries := self._client.xrange(
            key, min=b"(" + self._last, count=_READ_AT_ONCE
        ):
            for _, fields in entries:
                if CHUNK_FIELD in fields:
                    self.found |= set(decode_chunk(fields[CHUNK_FIELD]).transaction_id)
            self._last = entries[-1][0]
            self._client.xtrim(key, minid=self._last, approximate=True)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


async def _measure(
    options: argparse.Namespace, product: Supervised, rounds: Path
) -> Figures:
    address = find_server(product.state)
    assert address is not None
    caller = SteadyCaller("u", timeout_s=_TIMEOUT_S)
    reader = JournalReader(address.store_url)
    ended = asyncio.Event()
    began_s = monotonic()
    with contextlib.closing(reader):
        async with grpc.aio.insecure_channel(
            product.grpc_url, options=CHANNEL_OPTIONS
        ) as channel:
            sending = asyncio.create_task(
                caller.send_all(channel, rate=options.rate, ended=ended)
            )
            number = await _inject(options, rounds, reader=reader, began_s=began_s)
            ended.set()
            await sending
        seconds = monotonic() - began_s
        await _settle(product, rounds, reader=reader, caller=caller)
        return Figures(
            seconds=seconds,
            rounds=number,
            sent=caller.sent,
            lost=caller.lost,
            unrecorded=len(caller.answered - reader.found),
            recorded=len(reader.found),
            loops=loop_figures(reports(rounds), counted_errors(product)),
            recovered=product.recovered_parts(),
        )


async def _inject(
    options: argparse.Namespace, rounds: Path, *, reader: JournalReader, began_s: float
) -> int:
    """Begin a round in each interval until time is over; return how many there were."""
    number = 0
    while (now_s := monotonic() - began_s) < 60 * options.minutes:
        if now_s >= (number + 0.5) * options.every:
            number += 1
            new = rounds / f"{ROUND_FILE}.new"
            new.write_text(str(number))
            new.replace(rounds / ROUND_FILE)
            print(f"round {number}", file=sys.stderr, flush=True)
        await asyncio.to_thread(reader.read)
        await asyncio.sleep(_READ_S)
    return number


async def _settle(
    product: Supervised, rounds: Path, *, reader: JournalReader, caller: SteadyCaller
) -> None:
    """Wait for pauses, metrics and the journal to finish, up to a limit."""
    until_s = monotonic() + _SETTLE_S
    while monotonic() < until_s:
        await asyncio.sleep(_READ_S)
        await asyncio.to_thread(reader.read)
        loops = loop_figures(reports(rounds), counted_errors(product))
        if all(one.ok for one in loops) and caller.answered <= reader.found:
            return


def counted_errors(product: Supervised) -> Counter[str]:
    """Read both metrics pages: errors by loop."""
    with urllib.request.urlopen(product.metrics_url, timeout=20) as page:
        texts = [page.read().decode(), product.get("/metrics")[1]]
    return errors_on_pages(texts)


def errors_on_pages(texts: Sequence[str]) -> Counter[str]:
    """Add up the errors of each loop over pages and labels."""
    found: Counter[str] = Counter()
    for text in texts:
        for name, number in _COUNTED.findall(text):
            found[name] += int(float(number))
    return found


def loop_figures(
    found: Sequence[LoopReport], counted: Mapping[str, int]
) -> list[LoopFigures]:
    """Join the injected and the counted errors, by name."""
    every = [(one, _lives(report.pid)) for report in found for one in report.loops]
    names = {one.name for one, _ in every} | set(counted)
    return [
        LoopFigures(
            name=name,
            injected=sum(one.injected for one, _ in every if one.name == name),
            counted=counted.get(name, 0),
            loops=sum(lives for one, lives in every if one.name == name),
            alive=sum(lives and one.alive for one, lives in every if one.name == name),
        )
        for name in sorted(names)
    ]


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def to_text(figures: Figures) -> str:
    """Write the report."""
    lost = figures.lost.total()
    lines = [
        f"requests  {figures.sent:,} sent in {figures.seconds:,.0f} s, "
        f"{figures.sent / figures.seconds:.0f}/s, {lost:,} lost"
    ]
    lines += [f"          {count:,} x {text}" for text, count in figures.lost.items()]
    lines += [
        f"journal   {figures.recorded:,} decisions, {figures.unrecorded:,} answers "
        "without a record",
        f"recovered {', '.join(figures.recovered) or 'nothing'}",
        f"rounds    {figures.rounds}",
        "",
        f"{'loop':24} {'injected':>8} {'counted':>8} {'alive':>8}",
    ]
    lines += list(_rows(figures.loops))
    lines.append("")
    lines.append("no problem found" if figures.ok else "PROBLEMS FOUND")
    return "\n".join(lines) + "\n"


def _rows(loops: Sequence[LoopFigures]) -> Iterator[str]:
    for one in loops:
        alive = f"{one.alive}/{one.loops}"
        mark = "" if one.ok else "  <-- problem"
        yield f"{one.name:24} {one.injected:8} {one.counted:8} {alive:>8}{mark}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
