"""Simulated readings of machines with labelled anomalies."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import polars as pl


def machine_readings(
    *,
    machines: int = 2,
    rows: int = 2_000,
    sensors: int = 2,
    every: timedelta = timedelta(minutes=5),
    anomalies: int = 2,
    seed: int = 0,
) -> pl.DataFrame:
    """
    Simulate sensors with a daily cycle and noise; some windows have a shifted level.

    Columns machine_id, event_time, s0 … and in_window; each machine's anomalies are 40
    readings long, in the last two thirds, and move sensor 0 by 8 standard deviations of
    its noise.
    """
    random = np.random.default_rng(seed)
    times = [datetime(2024, 1, 1) + every * at for at in range(rows)]
    day = np.arange(rows) * (every / timedelta(days=1))
    frames = []
    for machine in range(machines):
        flags = np.zeros(rows, bool)
        for first in np.linspace(rows * 0.4, rows * 0.9, anomalies).astype(int):
            flags[first : first + 40] = True
        columns = {}
        for sensor in range(sensors):
            level = 10.0 ** (sensor % 3) * (machine + 1)
            values = level * (5 + 0.5 * np.sin(2 * np.pi * day))
            values += level * random.normal(size=rows)
            if sensor == 0:
                values[flags] += 8 * level
            columns[f"s{sensor}"] = np.round(values, 2)
        frames.append(
            pl.DataFrame(
                {
                    "machine_id": [f"m{machine}"] * rows,
                    "event_time": times,
                    **columns,
                    "in_window": flags,
                }
            )
        )
    return pl.concat(frames)
