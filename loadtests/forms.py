"""
Compare the forms of a product in turns: throughput, latency, processor time.

    python -m loadtests.forms
    python -m loadtests.forms ensemble fused fused:250 --only 1-row-64 --runs 5

A variant is a form, with the queue delay of the fused one in microseconds. All variants
run at the same time, each with its own Redis that holds the same history; in each turn
every one is loaded once, and every second turn takes them in the other order. The store
has a deadline of 500 ms, so that a busy machine does not change what is measured.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtests.paced.bench import stream_read
from loadtests.requests.generator import SCENARIOS, Scenario, make_generator
from loadtests.results.measure import LimitBench, Run, measure
from loadtests.results.surroundings import CHECKOUT
from tollgate.load.store_contents import (
    HISTORY_DAYS,
    compact_store,
    fill_store,
    served_spec,
    simulated_history,
)
from tollgate.load.traffic import Traffic, traffic_of
from tollgate.repository.slo import Form
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import serve

DEADLINE_MS = "500"
_FORMS: dict[str, Form] = {"ensemble": "ensemble", "fused": "fused"}


def main(arguments: Sequence[str]) -> int:
    """Compare; print each run, then medians and the ratios to the first variant."""
    options = _parser().parse_args(arguments)
    scenarios = [one for one in SCENARIOS if one.name in options.only]
    with tempfile.TemporaryDirectory(prefix="tollgate-forms-") as name:
        found = compare(options, scenarios, folder=Path(name))
    _print_medians(found, options.variants)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.forms")
    parser.add_argument("variants", nargs="*", default=["ensemble", "fused"])
    parser.add_argument("--only", nargs="+", default=["16-rows-4", "1-row-64"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm-up", type=float, default=1.5)
    parser.add_argument("--customers", type=int, default=2_000)
    return parser


def compare(
    options: argparse.Namespace, scenarios: Sequence[Scenario], *, folder: Path
) -> Mapping[tuple[str, str], list[Run]]:
    """Load the variants in turns; return the runs by scenario and variant."""
    repository = CHECKOUT / "model_repository"
    history = simulated_history(
        served_spec(repository),
        customers=options.customers,
        terminals=2 * options.customers,
        days=HISTORY_DAYS,
    )
    known = folder / "known"
    known.mkdir()
    with EmbeddedRedis(known) as store:
        fill_store(served_spec(repository), history, store_url=store.url)
        compact_store(store.url)
    traffic = traffic_of(history, days=HISTORY_DAYS)
    found: dict[tuple[str, str], list[Run]] = {}
    with ExitStack() as stack:
        benches = {
            variant: stack.enter_context(
                _bench(variant, folder / f"variant-{number}", known, traffic)
            )
            for number, variant in enumerate(options.variants)
        }
        first = dict.fromkeys(benches, 0)
        for turn in range(options.runs):
            for scenario in scenarios:
                for variant in list(benches)[:: 1 if turn % 2 == 0 else -1]:
                    run, first[variant] = measure(
                        benches[variant],
                        scenario,
                        first=first[variant],
                        warm_up_s=options.warm_up,
                        measured_s=options.seconds,
                    )
                    found.setdefault((scenario.name, variant), []).append(run)
                    print(f"{scenario.name:10} {variant:12} {_line(run)}", flush=True)
    return found


@contextmanager
def _bench(
    variant: str, folder: Path, known: Path, traffic: Traffic
) -> Iterator[LimitBench]:
    """Serve a variant over a copy of the store."""
    form, _, delay_us = variant.partition(":")
    folder.mkdir()
    repository = _repository(folder / "models", delay_us=delay_us)
    state = folder / "state"
    # The socket of a long path is a link into its original folder.
    shutil.copytree(known, state, ignore=shutil.ignore_patterns("redis.sock"))
    with (
        serve(repository, state=state, form=_FORMS[form]) as server,
        stream_read(server.store_url, product="fraud"),
    ):
        yield LimitBench(server, make_generator(folder), traffic, folder)


def _repository(folder: Path, *, delay_us: str) -> Path:
    """Copy the repository, with a patient store and a queue delay of the fused form."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "model_repository", folder, ignore=ignored)
    features = folder / "fraud_features/config.pbtxt"
    text = features.read_text()
    features.write_text(
        text.replace('string_value: "5"', f'string_value: "{DEADLINE_MS}"')
    )
    if delay_us:
        parameter = 'key: "fused_queue_delay_us" value '
        with (folder / "fraud/config.pbtxt").open("a") as file:
            file.write(
                f'parameters {{ {parameter} {{ string_value: "{delay_us}" }} }}\n'
            )
    return folder


def cpu_us(run: Run) -> float:
    """Return the processor time of a decision, µs: all processes of the server."""
    return run.work.cpu_s * 1e6 / max(1, run.work.purchases)


def _line(run: Run) -> str:
    latency, work = run.latency, run.work
    return (
        f"{run.decisions_per_s:8,.0f}/s  p50 {latency.p50_ms:5.1f} ms  p99 "
        f"{latency.p99_ms:6.1f} ms  {cpu_us(run):6.1f} µs/decision  "
        f"{work.purchases / max(1, work.feature_batches):5.1f} rows/batch"
    )


def _print_medians(
    found: Mapping[tuple[str, str], list[Run]], variants: Sequence[str]
) -> None:
    print("medians, and the median ratio of the processor time to the first variant")
    for (scenario, variant), runs in found.items():
        base = found[scenario, variants[0]]
        pairs = zip(runs, base, strict=True)
        ratio = statistics.median(cpu_us(one) / cpu_us(other) for one, other in pairs)
        print(
            f"{scenario:10} {variant:12} "
            f"{statistics.median(one.decisions_per_s for one in runs):8,.0f}/s  p50 "
            f"{statistics.median(one.latency.p50_ms for one in runs):5.1f} ms  p99 "
            f"{statistics.median(one.latency.p99_ms for one in runs):6.1f} ms  "
            f"{statistics.median(map(cpu_us, runs)):6.1f} µs/decision  {ratio:.2f}"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
