"""
Decide on a device in this process at a fixed rate, whatever it does.

`python -m loadtests.edge.in_process BUNDLE KEY STATE RATE SECONDS` prints the latencies
in ms from when each purchase was due, one to a line, the first two seconds left out;
then the processor time of the process per decision, µs, and its resident memory, MiB.
"""

from __future__ import annotations

import gc
import itertools
import os
import queue
import sys
import threading
import time
from pathlib import Path

from loadtests.edge.decider import purchases
from tollgate.edge.device import Device
from tollgate.load.arrivals import poisson

WARM_S = 2.0
_CALLERS = 8

Row = dict[str, list[object]]


def main() -> None:
    """Open the device, and let some threads call it."""
    bundle, key, state, rate, seconds = sys.argv[1:]
    at_s = poisson(
        int(float(rate) * (float(seconds) + WARM_S)), rate_per_s=float(rate), seed=1
    )
    rows = list(itertools.islice(purchases(0, 0), len(at_s)))
    waiting: queue.SimpleQueue[tuple[float, Row] | None] = queue.SimpleQueue()
    found: list[tuple[float, float]] = []

    def call() -> None:
        while (one := waiting.get()) is not None:
            due_s, row = one
            device.decide(row)
            found.append((due_s, time.perf_counter() - due_s))

    with Device.open(bundle, key=key, state=state) as device:
        callers = [threading.Thread(target=call) for _ in range(_CALLERS)]
        for one in callers:
            one.start()
        gc.collect()
        gc.freeze()
        began_s, used_s = time.perf_counter(), time.process_time()
        for due_s, row in zip((began_s + at_s).tolist(), rows, strict=True):
            time.sleep(max(0.0, due_s - time.perf_counter()))
            waiting.put((due_s, row))
        for _ in callers:
            waiting.put(None)
        for one in callers:
            one.join()
        used_us = (time.process_time() - used_s) / len(rows) * 1e6
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    for due_s, took_s in found:
        if due_s - began_s >= WARM_S:
            print(took_s * 1e3)
    print(used_us)
    print(pages * os.sysconf("SC_PAGESIZE") / 2**20)


if __name__ == "__main__":
    main()
