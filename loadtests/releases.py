"""
Results that callers see while releases change: `python -m loadtests.releases`.

`tollgate up` under a fixed rate of single rows; releases are activated one after the
other, then canaries start, grow and end. Prints the table of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from loadtests.harness import (
    Population,
    Report,
    StoreContents,
    add_form,
    command_parser,
    run_command,
    temporary_folder,
)
from loadtests.requests.bodies import bodies_of
from loadtests.requests.generator import (
    GeneratorRun,
    Scenario,
    make_generator,
    run_h2load,
)
from loadtests.requests.recorded_answers import tally
from loadtests.results.markdown import markdown_table
from loadtests.results.percentiles import Latency, latency_of
from loadtests.results.surroundings import CHECKOUT
from tollgate.errors import ServerError, TollgateError
from tollgate.imports import be_gentle
from tollgate.load.surroundings import measured_on
from tollgate.load.traffic import Traffic
from tollgate.repository.releases.activation import activate, compose_next
from tollgate.repository.releases.release_file import Release, release_path
from tollgate.repository.releases.release_history import Action
from tollgate.repository.releases.trial_changes import (
    promoted,
    with_challenger,
    with_percent,
    without_challenger,
)
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.supervisor.reconciler import digest_of
from tollgate.supervisor.replicas import query_replica
from tollgate.testing.supervised import Supervised, supervised

_WARM_UP_S, _BEFORE_S = 5.0, 10.0
_PATIENCE_S = 30.0
_MODEL, _DECISION = "fraud_model", "fraud_decision"
_SCENARIO = Scenario(
    "paced", rows=1, connections=4, streams=64, most_requests_per_s=1_000
)


# A kind of change, and a function that describes the release after it.
Todo = tuple[Action, Callable[..., Release]]


class Change(msgspec.Struct, frozen=True):
    """A change of the active release: its kind, and when it began and ended, µs."""

    kind: str
    start_us: int
    ended_us: int


class ReleaseBench(msgspec.Struct, frozen=True):
    """The server, and where its files are."""

    product: Supervised
    repository: Path
    changes: list[Change]


def main(arguments: Sequence[str]) -> int:
    """Change releases under load; print the table; status 1 when a request failed."""
    parser = command_parser("releases")
    add_form(parser)
    parser.add_argument("--activations", type=int, default=50)
    parser.add_argument("--canaries", type=int, default=20)
    parser.add_argument(
        "--change-s", type=float, default=4.0, help="limit of the mean time of a change"
    )
    parser.add_argument("--rate", type=int, default=1_000, help="requests per second")
    return run_command(parser, arguments, measure=measure)


def measure(options: argparse.Namespace) -> Report:
    """Change releases under load, and write the table."""
    changes, generated = run(options)
    failures = Counter(one.failure for one in generated.recorded.answers if one.failure)
    lines = to_markdown(changes, generated, failures)
    lines += ["", f"{measured_on()}. `{options.command}`"]
    return Report("\n".join(lines), ok=not failures)


def run(options: argparse.Namespace) -> tuple[list[Change], GeneratorRun]:
    """Serve, load and change."""
    with temporary_folder("releases") as folder:
        generator = make_generator(folder)
        repository = _repository(folder / "model_repository")
        contents = StoreContents(Population(2_000, 4_000))
        words = ("up", "--form", options.form)
        state = folder / "state"
        with supervised(repository, state=state, words=words) as product:
            contents.fill(product.address.store_url)
            bench = ReleaseBench(product, repository, [])
            todo = [*_activations(options.activations), *_canaries(options.canaries)]
            run_s = _WARM_UP_S + _BEFORE_S + options.change_s * len(todo)
            bodies = _bodies(contents.traffic, options.rate, run_s)
            problems: list[Exception] = []
            changing = threading.Thread(
                target=_change_all, args=(bench, todo, problems), daemon=True
            )
            changing.start()
            generated = run_h2load(
                generator,
                _SCENARIO,
                bodies=bodies,
                grpc_url=product.grpc_url,
                run_s=run_s,
                folder=folder,
                rate_per_s=options.rate,
            )
            if changing.is_alive():
                raise ServerError("releases", "changed more slowly than the load ended")
            if problems:
                raise problems[0]
            return bench.changes, generated


def _repository(folder: Path) -> Path:
    """Copy the product; each of model and policy has a second version."""
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "model_repository", folder, ignore=leave)
    for step in (_MODEL, _DECISION):
        shutil.copytree(folder / step / "1", folder / step / "2")
    return folder


def _bodies(traffic: Traffic, rate_per_s: int, run_s: float) -> np.ndarray:
    count = round(rate_per_s * (run_s + 1))
    return bodies_of(traffic.columns(0, count), rows=1)


def _activations(count: int) -> Iterator[Todo]:
    """Yield the releases to activate: another model, another policy, in turns."""
    for number in range(count):
        step = (_MODEL, _DECISION)[number % 2]
        yield "activate", partial(_other, step=step)


def _other(snapshot: RepositorySnapshot, *, product: str, step: str) -> Release:
    """Describe the release with the other version of a step."""
    version = 3 - snapshot.release(product).versions[step]
    return compose_next(
        snapshot,
        product=product,
        versions={step: version},
        actor="load",
        reason="load",
    )


def _canaries(count: int) -> Iterator[Todo]:
    """Yield the changes of canaries: start, grow, then promoted or stopped in turns."""
    author = {"actor": "load", "reason": "load"}
    for number in range(count):
        yield "challenger start", partial(_canary, **author)
        yield "challenger raise", partial(with_percent, percent=50.0, **author)
        if number % 2:
            yield "promote", promoted
        else:
            yield "challenger stop", without_challenger


def _canary(
    snapshot: RepositorySnapshot, *, product: str, actor: str, reason: str
) -> Release:
    """Describe the release with a canary of the other model."""
    version = 3 - snapshot.release(product).versions[_MODEL]
    return with_challenger(
        snapshot,
        product=product,
        versions={_MODEL: version},
        mode="canary",
        percent=5.0,
        actor=actor,
        reason=reason,
    )


def _change_all(
    bench: ReleaseBench,
    todo: Sequence[Todo],
    problems: list[Exception],
) -> None:
    be_gentle()  # in real use, another machine changes releases
    time.sleep(_WARM_UP_S + _BEFORE_S)
    try:
        for kind, make in todo:
            start_us = time.time_ns() // 1000
            snapshot = RepositorySnapshot(bench.repository)
            release = make(snapshot, product="fraud")
            activate(
                snapshot,
                release,
                action=kind,
                actor="load",
                reason=kind,
            )
            _wait(bench, release)
            bench.changes.append(Change(kind, start_us, time.time_ns() // 1000))
    except TollgateError as error:
        problems.append(error)


def _wait(bench: ReleaseBench, release: Release) -> None:
    """Wait until the server has activated a release."""
    until_s = time.monotonic() + _PATIENCE_S
    file = digest_of(release_path(bench.repository, "fraud").read_bytes())
    while True:
        (now,) = query_replica(bench.product.health_url)
        if now.file == file and now.state == "converged":
            return
        if time.monotonic() > until_s or (now.file == file and now.state == "failed"):
            raise ServerError("fraud", f"{release.name}: {now.state}: {now.doing}")
        time.sleep(0.2)


def to_markdown(
    changes: Sequence[Change], generated: GeneratorRun, failures: Counter[str]
) -> list[str]:
    """Write a line for the time before, and one for each kind of change."""
    log = generated.log
    ended_us = log.start_us + log.took_us
    first_us = changes[0].start_us
    before = (ended_us < first_us) & (ended_us >= first_us - int(_BEFORE_S * 1e6))
    head = (
        *("", "times", "median s", "requests", "failed"),
        *("p50 ms", "p99 ms", "longest ms"),
    )
    rows = [
        _cells("before", "", "", latency_of(log.took_us[before]), int(before.sum()), 0),
    ]
    kinds = list(dict.fromkeys(change.kind for change in changes))
    for kind in [*kinds, "all changes"]:
        mine = [change for change in changes if kind in (change.kind, "all changes")]
        inside = np.zeros(len(ended_us), np.bool_)
        failed = 0
        for change in mine:
            inside |= (ended_us >= change.start_us) & (ended_us < change.ended_us)
            failed += sum(
                bool(one.failure) and change.start_us <= one.ended_us < change.ended_us
                for one in generated.recorded.answers
            )
        taken_s = sorted((one.ended_us - one.start_us) / 1e6 for one in mine)
        rows.append(
            _cells(
                kind,
                str(len(mine)),
                f"{taken_s[len(taken_s) // 2]:.2f}",
                latency_of(log.took_us[inside]),
                int(inside.sum()),
                failed,
            )
        )
    return [*markdown_table(head, rows), "", *_said(generated, failures)]


def _cells(
    kind: str, times: str, taken: str, latency: Latency, requests: int, failed: int
) -> tuple[object, ...]:
    return (
        *(kind, times, taken, f"{requests:,}", failed),
        *(f"{one:.1f}" for one in (latency.p50_ms, latency.p99_ms, latency.max_ms)),
    )


def _said(generated: GeneratorRun, failures: Counter[str]) -> Iterator[str]:
    """Summarize all answers of the run."""
    answers = generated.recorded.answers
    said = tally(answers)
    yield (
        f"{said.requests:,} requests answered, {sum(failures.values())} failed, "
        f"{said.refused_rows} rows refused, {said.degraded_rows:,} rows degraded."
    )
    yield from (f"Failed {count} times: {text}" for text, count in failures.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
