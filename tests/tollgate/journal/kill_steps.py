"""
Kill the decision step of a real server while it decides; count what leaves no record.

    python tests/tollgate/journal/kill_steps.py --kills 20 [--seed 1] [--rows 32]
    python tests/tollgate/journal/kill_steps.py --kills 6 --form fused

One caller asks for decisions in requests of so many rows, one after the other, and
notes when each was answered. The step's process is killed with SIGKILL at random
moments; the supervisor starts it again, and after a few kills another server takes the
place of this one. Prints one JSON object: how many decisions were numbered and are not
in the stream, how many of those had been answered, and how long before the kill at
most. Every writer's end must be known.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from tests.support.journal.numbered_decisions import chunks_in, ends_in, wait_until
from tollgate.server.address import find_server
from tollgate.supervisor.recovery import MOST  # deaths a minute that are mended
from tollgate.testing.supervised import Supervised, supervised
from tollgate_client import ClientError
from tollgate_client.client import Client

CHECKOUT = Path(__file__).parents[3]
STEPS = {"ensemble": "fraud_decision", "fused": "fraud"}  # process that journals
_DEADLINE_S = 1.0


class Caller(threading.Thread):
    """
    Asks until stopped.

    Attributes:
        answered_s: When each transaction was answered, of time.monotonic.
        stopped: Ends it.
    """

    def __init__(self, url: str, *, name: str, rows: int) -> None:
        super().__init__(daemon=True)
        self._url, self._name, self._rows = url, name, rows
        self.answered_s: dict[bytes, float] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        """Ask; what fails was not answered."""
        number = 0
        with Client(self._url) as client:
            while not self.stopped.is_set():
                names = [f"{self._name}-{number + row}" for row in range(self._rows)]
                now_us = time.time_ns() // 1000
                asked = {
                    "transaction_id": names,
                    "customer_id": [f"c{one[-2:]}" for one in names],
                    "terminal_id": [f"m{one[-1:]}" for one in names],
                    "amount": [20.5] * self._rows,
                    "event_time": [now_us] * self._rows,
                }
                number += self._rows
                try:
                    client.decide(asked, deadline_s=_DEADLINE_S)
                except ClientError:
                    time.sleep(0.05)
                    continue
                now_s = time.monotonic()
                self.answered_s |= {one.encode(): now_s for one in names}


def kill(product: Supervised, caller: Caller, *, step: str, after_s: float) -> float:
    """Kill the step some time from now, and wait until it decides again; when."""
    caller.start()
    time.sleep(after_s)
    mended = len(product.recovered_parts())
    os.kill(product.pid(step), 9)
    killed_s = time.monotonic()
    caller.stopped.set()
    caller.join()
    product.wait_recovered(mended + 1)
    return killed_s


def run(
    *, kills: int, seed: int, rows: int, folder: Path, form: str = "ensemble"
) -> dict[str, object]:
    """Do it; what was found."""
    chance = random.Random(seed)
    total: Counter[str] = Counter()
    ages_ms: list[float] = []
    for first in range(0, kills, MOST):
        found, ages = kill_some(
            min(MOST, kills - first),
            chance,
            rows=rows,
            state=folder / f"s{first}",
            form=form,
        )
        total += found
        ages_ms += ages
    return {
        "kills": kills,
        "rows": rows,
        **{name: total[name] for name in ("ends", "decided", "missing_by_number")},
        "missing_answered": len(ages_ms),
        "oldest_missing_ms": round(max(ages_ms, default=0.0), 1),
    }


def kill_some(
    kills: int, chance: random.Random, *, rows: int, state: Path, form: str
) -> tuple[Counter[str], list[float]]:
    """Kill the step of one server; what was counted, and how old what is missing is."""
    callers: list[tuple[Caller, float]] = []
    words = ("up", "--form", form)
    models = CHECKOUT / "model_repository"
    with supervised(models, state=state, words=words) as product:
        server = find_server(product.state)
        assert server is not None
        for number in range(kills):
            caller = Caller(server.grpc_url, name=f"k{number}", rows=rows)
            after_s = chance.uniform(0.5, 1.5)
            killed_s = kill(product, caller, step=STEPS[form], after_s=after_s)
            callers.append((caller, killed_s))
        url = server.store_url
        wait_until(lambda: sum(end.killed for end in ends_in(url)) >= kills)
        records = chunks_in(url)
        ends = [end for end in ends_in(url) if end.killed]
    gone = {end.writer for end in ends}
    seen = {
        (one.writer, one.first_sequence + row): one.transaction_id[row]
        for one in records
        for row in range(len(one))
    }
    kept = set(seen.values())
    decided = sum(end.sequence for end in ends)
    there = sum(writer in gone for writer, _ in seen)
    counted = Counter(
        ends=len(ends), decided=decided, missing_by_number=decided - there
    )
    return counted, [
        (killed_s - answered_s) * 1e3
        for caller, killed_s in callers
        for name, answered_s in caller.answered_s.items()
        if name not in kept
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--form", choices=list(STEPS), default="ensemble")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steps-") as name:
        found = run(
            kills=given.kills,
            seed=given.seed,
            rows=given.rows,
            folder=Path(name),
            form=given.form,
        )
        print(json.dumps(found))
