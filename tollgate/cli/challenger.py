"""Follow a challenger's trial: `tollgate challenger report` and `run`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console, running
from tollgate.cli.options import Json, Repository
from tollgate.cli.release import Product, State
from tollgate.cli.repositories import (
    open_for_changes,
    open_for_reading,
    open_refreshable,
    require_no_mirror,
)
from tollgate.cli.scraping import (
    LOOPBACK,
    MetricsHost,
    MetricsPort,
    require_metrics_port,
    serve_metrics,
)
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import InputError

if TYPE_CHECKING:
    from tollgate.challenger.kept import TrialState
    from tollgate.settings import Settings

_IDLE_S = 1.0
_BROKEN = 1  # exit status: a gate is broken


def report(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Challenger to report; if omitted, the one on trial, or the last one."
        ),
    ] = None,
    as_json: Json = False,
    picture: Annotated[
        Path | None, typer.Option(help="Path of the PNG file to write.")
    ] = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
) -> None:
    """
    Report a trial so far: flips, money, scores, times, errors, gates.

    Exit status 1: a gate is broken.
    """

    from tollgate.challenger.gates import broken
    from tollgate.challenger.report import make_report
    from tollgate.cli.challenger_tables import report_tables
    from tollgate.repository.gates import read_gates

    chosen = console.settings(repository=repository, product=product, state=state)
    with open_for_reading(chosen) as repository_here:
        trial = _trial_state(chosen, repository_here, name=name)
        gates = read_gates(repository_here, product=chosen.product)
    summary = make_report(trial, gates)
    if picture is not None:
        from tollgate.challenger.picture import draw

        draw(summary, trial, picture)
    if as_json:
        # JSON has no NaN and no infinity, which stand for unknown values: write null.
        console.print_json(summary)
    else:
        for table in report_tables(summary):
            console.out.print(table, highlight=False)
    if picture is not None:
        console.say(f"drawn: {picture}")
    if broken(list(summary.verdicts)):
        raise typer.Exit(_BROKEN)


def run(
    journal_url: Annotated[
        str | None,
        typer.Option(
            help="URL of the Redis or Redis Cluster with the journal stream.",
            show_default="the store",
        ),
    ] = None,
    judge_every: Annotated[
        str, typer.Option(help="Interval at which counts are saved and gates checked.")
    ] = "2s",
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    until_idle: Annotated[
        bool, typer.Option(help="End after a second without new records.")
    ] = False,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
) -> None:
    """Monitor trials, and end those that break a gate, until Ctrl-C or SIGTERM."""
    from tollgate.audit.files import lock
    from tollgate.audit.source import TRIAL_GROUP, ChunkSource
    from tollgate.challenger.kept import folder_of
    from tollgate.challenger.metrics import TrialMetrics
    from tollgate.challenger.worker import WORKER_LOCK, TrialWorker
    from tollgate.cli.journal import seconds

    chosen = console.settings(
        repository=repository, product=product, state=state, journal_url=journal_url
    )
    require_metrics_port(metrics_port, host=metrics_host)
    folder = folder_of(chosen.state_path, chosen.product)
    require_no_mirror(chosen)
    here, refresh = open_refreshable(chosen)
    refresh()
    folder.mkdir(parents=True, exist_ok=True)
    url = running.journal_url(chosen)
    with lock(folder / WORKER_LOCK, wait=False) as alone:
        if not alone:
            raise InputError(folder, "another worker counts into this folder")
        worker = TrialWorker(
            ChunkSource(url, product=chosen.product, group=TRIAL_GROUP),
            repository=here,
            product=chosen.product,
            folder=folder,
            changing=partial(open_for_changes, chosen),
            refresh=refresh,
            judge_s=seconds(judge_every, flag="--judge-every"),
            say=console.say,
        )
        metrics = TrialMetrics(
            chosen.product, trials=worker.counted, tally=lambda: worker.tally
        )
        serve_metrics(metrics.registry, metrics_port, host=metrics_host)
        stopped = stop_on_signal()
        console.say("counting decisions; Ctrl-C ends")
        worker.run(stopped, until_idle_s=_IDLE_S if until_idle else None)
    tally = worker.tally
    console.out.print(
        f"counted {tally.rows:,} decisions; unreadable {tally.unreadable:,}, retries "
        f"{tally.retries:,}, ended {len(tally.ended)}",
        highlight=False,
    )


def _trial_state(chosen: Settings, repository: Path, *, name: str | None) -> TrialState:
    """
    Find the counts to report.

    Raises:
        InputError: There are none.
    """
    import time

    from tollgate.challenger.kept import folder_of, load, newest
    from tollgate.challenger.trials import current_trials
    from tollgate.repository.gates import read_gates

    folder = folder_of(chosen.state_path, chosen.product)
    if name is None:
        gates = read_gates(repository, product=chosen.product)
        trials = current_trials(
            repository,
            product=chosen.product,
            watch_s=gates.watch_s,
            now_s=time.time(),
        )
        if trials:
            return load(folder, trials[0])
    found = newest(folder, challenger=name or "*")
    if found is None:
        raise InputError(folder, f"holds no trial of {name or chosen.product}")
    return found
