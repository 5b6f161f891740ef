"""
Measure the claims about smaller and faster models, on a model of your own.

    python -m converters.claims MODEL --sample ROWS --label COLUMN --thresholds 0.35,0.8

Every figure is a ratio of times measured alternately within one run, on one thread.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from sklearn.neural_network import MLPClassifier

from converters.compression.compression_cost import Judge, Trade, timed, weigh
from converters.compression.distill import distill
from converters.compression.quantize import How, int8, quantize
from converters.model import F32, F64, TrainedModel
from converters.onnx.from_sklearn import onnx_from_sklearn
from converters.parity.runner import onnx_runner
from converters.sample import read_sample
from converters.sources.files.formats import format_of
from converters.sources.worker import open_model
from tollgate.errors import InputError, TollgateError
from tollgate.repository.models.speed import BATCHES

WIDE = (512, 512)  # here matrix products, not calls, take the time
_TURNS = 200


class Claim(msgspec.Struct, frozen=True):
    """A claim and its measurement."""

    claim: str
    of: str
    result: str


def claims(model: TrainedModel, judge: Judge) -> list[Claim]:
    """
    Measure every claim on one tree model.

    Args:
        model: Model loaded in this process, so that its own predict is timed without a
            pipe.
        judge: Labelled rows to measure on.
    """
    facts, graph = model.facts, model.convert()
    remaining = round(0.7 * facts.trees)
    fewer = model.pruned(trees=remaining, depth=None).convert()
    pruned = weigh(graph, fewer, kind="prune", detail="30 % pruned", judge=judge)
    distilled = distill(model, judge=judge)
    student, loss = distilled.model.convert(), distilled.trade
    found = [
        Claim(
            "30 % pruned costs nothing",
            f"{remaining} of {facts.trees} trees",
            f"{_quality(pruned)}; {_speed(pruned)}; {_bytes(pruned)}",
        ),
        Claim(
            "2 to 5 times faster compiled",
            f"{onnx_runner(graph).runtime} and {facts.framework} {facts.version}",
            _compiled(model, graph, rows=judge.rows),
        ),
        Claim("3.7 times at batch 32 over batch 1", "the trees", _batching(graph)),
        Claim("3.7 times at batch 32 over batch 1", "the network", _batching(student)),
        Claim(
            "(distilled)",
            loss.detail,
            f"{_quality(loss)}; {_speed(loss)}; {_bytes(loss)}",
        ),
    ]
    hows: tuple[How, ...] = ("static", "dynamic")
    for how in hows:
        small = quantize(
            student, how, judge=distilled.judge, samples=distilled.rows
        ).trade
        text = f"{_bytes(small)}; {_speed(small)}; {_quality(small)}"
        found.append(Claim("4 times quantised", f"the network, int8 {how}", text))
    for how in hows:
        found.append(_wide(how, columns=facts.columns))
    found.append(
        Claim(
            "5 to 10 times with TensorRT",
            "",
            "not measured: this command runs on processors, TensorRT on GPUs",
        )
    )
    return found


def _wide(how: How, *, columns: int) -> Claim:
    """
    Measure int8 on a wide network with random weights.

    Size and time do not depend on the values of the weights.
    """
    random = np.random.default_rng(0)
    wide = MLPClassifier(hidden_layer_sizes=WIDE)
    sizes = (columns, *WIDE, 1)
    wide.coefs_ = [
        random.normal(scale=above**-0.5, size=(above, below)).astype(np.float32)
        for above, below in itertools.pairwise(sizes)
    ]
    wide.intercepts_ = [np.zeros(below, dtype=np.float32) for below in sizes[1:]]
    wide.n_layers_, wide.n_outputs_, wide.n_features_in_ = len(sizes), 1, columns
    wide.out_activation_, wide.classes_ = "logistic", np.arange(2)
    rows = random.normal(size=(512, columns)).astype(np.float32)
    graph = onnx_from_sklearn(wide)
    judge = Judge(rows=rows, label=None, thresholds=(0.5,))
    small = int8(graph, how, samples=rows)
    trade = weigh(graph, small, kind="quantize", detail=how, judge=judge)
    units = "x".join(map(str, WIDE))
    return Claim(
        "4 times quantised",
        f"random weights, {units} units, int8 {how}",
        f"{_bytes(trade)}; {_speed(trade)}",
    )


def _compiled(model: TrainedModel, graph: bytes, *, rows: F32) -> str:
    """Time the framework's own prediction and the converted model's alternately."""
    runner = onnx_runner(graph)
    fastest: dict[tuple[int, bool], float] = {}
    predictors: tuple[tuple[bool, Callable[[F32], F32 | F64]], ...] = (
        (False, model.predict),
        (True, runner),
    )
    for _ in range(_TURNS):
        for count in BATCHES:
            for compiled, ask in predictors:
                started = time.perf_counter()
                ask(rows[:count])
                took = time.perf_counter() - started
                key = (count, compiled)
                fastest[key] = min(took, fastest.get(key, took))
    return "faster " + ", ".join(
        f"{fastest[count, False] / fastest[count, True]:.1f} times at {count}"
        for count in BATCHES
    )


def _batching(graph: bytes) -> str:
    (us,) = timed([graph])
    return f"rows per second {us[BATCHES[0]] / us[BATCHES[-1]]:.1f} times"


def _speed(trade: Trade) -> str:
    return "speed " + ", ".join(
        f"{us / trade.after.us_per_row[rows]:.2f} times at {rows}"
        for rows, us in trade.before.us_per_row.items()
    )


def _bytes(trade: Trade) -> str:
    return f"{trade.before.size_bytes / trade.after.size_bytes:.1f} times fewer bytes"


def _quality(trade: Trade) -> str:
    before, after = trade.before, trade.after
    parts = [
        f"{name} {first:.3f} → {second:.3f}"
        for name, first, second in (
            ("AUC", before.auc, after.auc),
            ("AP", before.average_precision, after.average_precision),
        )
        if first is not None and second is not None
    ]
    flips = f"{trade.flips} of {trade.rows:,} decisions change"
    return ", ".join([*parts, f"{flips} ({trade.flagged} rows reach a threshold)"])


def table(found: Sequence[Claim]) -> str:
    """Write claims as a Markdown table."""
    lines = ["| claim | measured on | result |", "|---|---|---|"]
    lines += [f"| {one.claim} | {one.of} | {one.result} |" for one in found]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table for one model; return 2 if the input is not usable."""
    parser = argparse.ArgumentParser(description="measure the field's claims")
    parser.add_argument("model", type=Path)
    parser.add_argument("--sample", type=Path, required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--thresholds", default="0.5")
    options = parser.parse_args(arguments)
    try:
        form = format_of(options.model)
        if form not in ("xgboost", "lightgbm"):
            raise InputError(options.model, "is no XGBoost or LightGBM file")
        model = open_model(options.model, form=form, missing=None)
        sample = read_sample(
            options.sample, names=model.facts.names, label=options.label
        )
        cuts = tuple(float(one) for one in options.thresholds.split(","))
        label = sample.classes(model.facts.classes)
        judge = Judge(rows=sample.rows, label=label, thresholds=cuts)
        print(table(claims(model, judge)))
    except TollgateError as error:
        print(f"claims: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
