"""
Score the detector on the Numenta Anomaly Benchmark.

    python -m tests.tollgate.detection.nab_benchmark ../shared/data/sensors/nab.parquet

Everything was chosen on the series with an even CRC32 of their names, and the detector
is trained on them; the others are unseen.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np
import polars as pl

from tollgate.detection.alarms import alarm_rule
from tollgate.detection.benchmark import (
    compare_detectors,
    labelled_series,
)
from tollgate.detection.detection_quality import Quality
from tollgate.detection.detector import detector_scores, train_detector
from tollgate.detection.reading_features import build_features, propose_features


def read_series(path: Path) -> dict[str, pl.DataFrame]:
    """Read the benchmark: one table of readings for each series."""
    table = pl.read_parquet(path).rename({"timestamp": "event_time"})
    table = table.with_columns(pl.col("series").cast(pl.String).alias("machine_id"))
    groups = table.partition_by("machine_id", as_dict=True, maintain_order=True)
    return {str(name): one for (name,), one in groups.items()}


def is_even(name: str) -> bool:
    """Return whether everything was chosen on a series."""
    return zlib.crc32(name.encode()) % 2 == 0


def main(path: Path) -> None:
    """Print the quality of the detector and its rivals on both halves."""
    tables = read_series(path)
    vectors, rules, series = {}, {}, {}
    names: tuple[str, ...] = ()
    for name, table in tables.items():
        features = propose_features(
            table, product="nab", machine="machine_id", sensors=["value"]
        )
        print(
            f"{name}: every {features.interval_us / 6e7:g} min, hop {features.hop}, "
            f"windows {', '.join(f'{one / 3.6e9:g}h' for one in features.windows_us)}"
        )
        (series[name],), (order,) = labelled_series(
            table, machine="machine_id", sensors=["value"], in_window="in_window"
        )
        built, names = build_features(table, features)
        vectors[name] = built[order]
        rules[name] = alarm_rule(features.interval_us)
    seen = [name for name in tables if is_even(name)]
    detector = train_detector(
        np.concatenate([vectors[name] for name in seen]), names, sensors=["value"]
    )
    for half, chosen in (
        ("even, chosen and trained on", seen),
        ("odd, unseen", [name for name in tables if not is_even(name)]),
        ("all", list(tables)),
    ):
        print(f"\n{half}: {len(chosen)} series")
        own = compare_detectors(
            [series[name] for name in chosen],
            [detector_scores(detector, vectors[name]) for name in chosen],
            rules=[rules[name] for name in chosen],
        )
        for one in own:
            if one.quality is not None:
                show(one.detector, one.quality)
            show(f"{one.detector}, recall of the detector", one.at_recall)
        assert own[1].quality is not None
        (same, *_) = compare_detectors(
            [series[name] for name in chosen],
            [detector_scores(detector, vectors[name]) for name in chosen],
            rules=[rules[name] for name in chosen],
            recall=own[1].quality.recall,
        )
        show("detector, recall of the 3-sigma rule", same.at_recall)


def show(name: str, found: Quality | None) -> None:
    """Print the quality of a detector in one line."""
    if found is None:
        print(f"{name:55s} never")
        return
    print(
        f"{name:55s} NAB {found.nab:6.2f}, {found.detected} of {found.windows} "
        f"windows, {found.false_alarms} false alarms, "
        f"{found.false_alarms_per_sensor_day:.4f} per sensor-day, "
        f"delay {found.delay_s / 3600:.1f} h"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
