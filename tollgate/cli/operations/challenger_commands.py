"""Follow a challenger's trial: `tollgate challenger report` and `run`."""

from __future__ import annotations

import getpass
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from tollgate.cli import console, running_server
from tollgate.cli.decisions.journal_commands import Folder, Keys
from tollgate.cli.metrics_port import (
    LOOPBACK,
    MetricsHost,
    MetricsPort,
    require_metrics_port,
    serve_metrics,
)
from tollgate.cli.operations.release_commands import (
    WAIT_S,
    Actor,
    Reason,
    RequireApproval,
    Wait,
    change,
    follow,
    settings_of,
    versions_of,
)
from tollgate.cli.options import (
    ActionColumn,
    ItemColumn,
    JournalUrl,
    Json,
    Picture,
    Product,
    Repository,
    State,
    TimeColumn,
    UntilIdle,
    UserColumn,
)
from tollgate.cli.repositories import (
    open_for_changes,
    open_for_reading,
    open_refreshable,
    require_no_mirror,
)
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import InputError

if TYPE_CHECKING:
    from tollgate.audit.review.list_responses import ItemEvents
    from tollgate.challenger.intervals import Interval
    from tollgate.challenger.trial_report import ReleaseSummary, TrialReport
    from tollgate.challenger.trials import TrialState
    from tollgate.repository.releases.release_file import Release
    from tollgate.settings import Settings

# Start, widen, stop and promote a challenger: `challenger start|raise|promote|stop`.


def start(
    versions: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="STEP=VERSION that differs from the active release; STEP "
            "can be features, model or decision. May be repeated.",
            metavar="STEP=VERSION",
        ),
    ],
    reason: Reason = ...,  # type: ignore[assignment]
    mode: Annotated[
        Literal["shadow", "canary"],
        typer.Option(
            help="shadow: score off the request path; canary: answer some customers."
        ),
    ] = "shadow",
    percent: Annotated[
        float,
        typer.Option(
            help="Percentage of customers that a canary answers.", min=0, max=100
        ),
    ] = 5.0,
    interleave: Annotated[
        bool,
        typer.Option(
            "--interleave",
            help="Of a canary of a product that ranks: in that percentage of requests, "
            "both releases pick the items of the list in turns.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Start a canary without a shadow that passed the gates."
        ),
    ] = False,
    actor: Actor = None,
    require_approval: RequireApproval = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """Start a trial: a shadow, or a canary if its shadow passed the gates."""
    from tollgate.repository.releases.trial_changes import with_challenger
    from tollgate.repository.snapshot import RepositorySnapshot

    # A shadow decides for no caller, so no second person must confirm it.
    asks = require_approval if mode == "canary" else False
    chosen = settings_of(repository, product, state, asks)
    if interleave and mode != "canary":
        raise InputError("--interleave", "a shadow answers nobody; --mode canary")
    who = actor or getpass.getuser()
    with open_for_changes(chosen) as folder:
        snapshot = RepositorySnapshot(folder)
        current = snapshot.release(chosen.product)
        changed = with_challenger(
            snapshot,
            product=chosen.product,
            versions=versions_of(snapshot, chosen.product, versions),
            mode=mode,
            percent=percent,
            actor=who,
            reason=reason,
            interleaved=interleave,
        )
        _require_scorable(folder, changed)
        if mode == "canary" and not force:
            _require_passed(chosen, folder, changed)
        change(
            chosen,
            snapshot,
            changed,
            action="challenger start",
            actor=who,
            reason=f"forced: {reason}" if force and mode == "canary" else reason,
            instead_of=current,
        )
    follow(chosen, folder, changed, wait_s=wait)
    _print_next_steps(chosen, changed)


def raise_share(
    percent: Annotated[
        float,
        typer.Option(
            help="Percentage of customers that the canary answers.", min=0, max=100
        ),
    ],
    reason: Reason = ...,  # type: ignore[assignment]
    actor: Actor = None,
    require_approval: RequireApproval = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """
    Raise a canary's share of customers; customers that it already serves stay with it.
    """
    from tollgate.repository.releases.trial_changes import with_percent
    from tollgate.repository.snapshot import RepositorySnapshot

    chosen = settings_of(repository, product, state, require_approval)
    who = actor or getpass.getuser()
    with open_for_changes(chosen) as folder:
        snapshot = RepositorySnapshot(folder)
        current = snapshot.release(chosen.product)
        changed = with_percent(
            snapshot,
            product=chosen.product,
            percent=percent,
            actor=who,
            reason=reason,
        )
        change(
            chosen,
            snapshot,
            changed,
            action="challenger raise",
            actor=who,
            reason=reason,
            instead_of=current,
        )
    follow(chosen, folder, changed, wait_s=wait)
    _print_next_steps(chosen, changed)


def stop(
    reason: Reason = ...,  # type: ignore[assignment]
    actor: Actor = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """End a trial; the active release keeps serving."""
    from tollgate.repository.releases.trial_changes import without_challenger
    from tollgate.repository.snapshot import RepositorySnapshot

    # Stopping a trial needs no approval.
    chosen = settings_of(repository, product, state, False)
    with open_for_changes(chosen) as folder:
        snapshot = RepositorySnapshot(folder)
        current = snapshot.release(chosen.product)
        changed = without_challenger(snapshot, product=chosen.product)
        change(
            chosen,
            snapshot,
            changed,
            action="challenger stop",
            actor=actor or getpass.getuser(),
            reason=reason,
            instead_of=current,
        )
    follow(chosen, folder, changed, wait_s=wait)


def promote(
    reason: Reason = ...,  # type: ignore[assignment]
    actor: Actor = None,
    require_approval: RequireApproval = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """Make the challenger the active release, under its own name."""
    from tollgate.repository.releases.trial_changes import promoted
    from tollgate.repository.snapshot import RepositorySnapshot

    chosen = settings_of(repository, product, state, require_approval)
    with open_for_changes(chosen) as folder:
        snapshot = RepositorySnapshot(folder)
        current = snapshot.release(chosen.product)
        release = promoted(snapshot, product=chosen.product)
        change(
            chosen,
            snapshot,
            release,
            action="promote",
            actor=actor or getpass.getuser(),
            reason=reason,
            instead_of=current,
        )
    follow(chosen, folder, release, wait_s=wait)


def _require_scorable(folder: Path, changed: Release) -> None:
    """Check that the challenger can score the rows of the active release."""
    from tollgate.audit.releases.past_release import ReleaseFiles, open_files
    from tollgate.challenger.shadow_scoring import Scorer
    from tollgate.repository.releases.release_history import release_on_trial

    trial = release_on_trial(changed)
    if trial is None:
        return
    champion, challenger = (
        open_files(ReleaseFiles(one, archived={}, repository=folder))
        for one in (changed, trial)
    )
    Scorer(champion, challenger)


def _require_passed(chosen: Settings, folder: Path, changed: Release) -> None:
    """
    Check that the challenger's shadow passed its gates.

    Raises:
        InputError: It did not pass, or there was none; the message gives the reason.
    """
    from tollgate.challenger.trial_gates import judge, passed
    from tollgate.challenger.trials import folder_of, last_trial, load
    from tollgate.repository.gate_limits import read_gates
    from tollgate.repository.releases.release_history import read_history

    challenger = changed.challenger
    if challenger is None:
        return
    name = challenger.release
    counts = folder_of(chosen.state_path, chosen.product)
    entries = read_history(folder, chosen.product)
    shadow = last_trial(entries, challenger=name, mode="shadow")
    is_compared = shadow is not None and shadow.champion == changed.name
    trial = load(counts, shadow) if shadow and is_compared else None
    if trial is None or not trial.groups:
        problem = f"{name} was no shadow of {changed.name} yet; that first, or --force"
        raise InputError("--mode canary", problem)
    gates = read_gates(folder, product=chosen.product)
    verdicts = judge(trial, gates)
    if not passed(verdicts):
        short = "; ".join(
            str(one) for one in verdicts if one.state in ("waits", "broken")
        )
        raise InputError("--mode canary", f"its shadow has not passed: {short}")


def _print_next_steps(chosen: Settings, changed: Release) -> None:
    there = changed.challenger
    if there is not None:
        verb = "would be on trial" if chosen.require_approval else "on trial"
        rows = "requests, interleaved" if there.interleaved else "customers"
        share = f", {there.percent:g} % of {rows}" if there.percent else ""
        console.result(f"{verb} {there.release}, {there.mode}{share}")


# Format the tables of a challenger report.

_STYLES = {"holds": "green", "unsure": "yellow", "broken": "red", "waits": "dim"}
_SHADOW_TIMES = "time of a batch in the worker"
_SERVER_TIMES = "time in the server"


def report_tables(report: TrialReport, *, amount: bool) -> Iterator[Any]:
    """
    Build the tables, below a line that names the releases under comparison.

    Args:
        amount: True if the rows have an amount; without it, no money is shown.
    """
    trial = report.trial
    share = f" at {trial.percent:g} %" if trial.mode == "canary" else ""
    yield (
        f"{trial.mode}{share}: {trial.challenger} next to {trial.champion} since "
        f"{trial.began}; {report.rows:,} rows decided by both, "
        f"{report.us_per_row:,.0f} µs a row off the path; intervals at 95 %"
    )
    if report.unfit:
        yield f"{report.unfit:,} rows left out: other features or fields"
    yield _gates(report)
    yield _parts(report, amount=amount)
    yield _matrix(report, amount=amount)
    yield _sides(report)
    yield (
        f"score: PSI {_plain(report.psi)}, KS {_plain(report.ks)}, both over the rows "
        "that both decided"
    )


def _gates(report: TrialReport) -> Table:
    table = console.number_table("gate", "", "found", "allowed", "rows")
    for one in report.verdicts:
        text = _percent if one.gate.endswith("_share") else _plain
        limit = f"{one.limit:.3g}"
        if one.gate.endswith("_share"):
            limit = f"{one.limit * 100:.3g} %"
        state = f"[{_STYLES[one.state]}]{one.state}[/]"
        table.add_row(one.gate, state, text(one.found), limit, f"{one.rows:,}")
    return table


def _parts(report: TrialReport, *, amount: bool) -> Table:
    money = ["of the money"] if amount else []
    table = console.number_table(
        *("rows", "", "decided otherwise", *money, "stricter", "milder", "score")
    )
    for one in report.parts:
        table.add_row(
            escape(one.name),
            f"{one.rows:,}",
            _percent(one.flips),
            *([_percent(one.money)] if amount else []),
            f"{one.stricter:,}" + amount * f" ({_money(one.stricter_cents)})",
            f"{one.milder:,}" + amount * f" ({_money(one.milder_cents)})",
            _plain(one.shift),
        )
    return table


def _matrix(report: TrialReport, *, amount: bool) -> Table:
    trial = report.trial
    words = report.outcomes
    table = console.number_table(f"{trial.champion} ╲ {trial.challenger}", *words)
    for at, name in enumerate(words):
        table.add_row(
            name,
            *(
                f"{rows:,}" + amount * f" ({_money(report.cents[at][other])})"
                for other, rows in enumerate(report.matrix[at])
            ),
        )
    return table


def _sides(report: TrialReport) -> Table:
    one, other = report.champion, report.challenger
    table = console.number_table("share", one.release, other.release, "difference")
    table.add_row("rows", f"{one.rows:,}", f"{other.rows:,}", "")
    for name in (*report.outcomes, "errors", "degraded"):
        table.add_row(
            name,
            _percent(_share(one, name)),
            _percent(_share(other, name)),
            _percent(report.differences[name]),
        )
    table.add_row("mean score", _plain(one.score), _plain(other.score), "")
    mode = report.trial.mode
    times = [_SERVER_TIMES, _SERVER_TIMES]
    if mode != "canary":
        times[mode == "shadow"] = _SHADOW_TIMES
    table.add_row("times are", *times, "")
    table.add_row("p50, ms", _plain(one.p50_ms), _plain(other.p50_ms), "")
    table.add_row("p99, ms", _plain(one.p99_ms), _plain(other.p99_ms), "")
    return table


def _share(side: ReleaseSummary, name: str) -> Interval:
    if name in side.shares:
        return side.shares[name]
    return side.errors if name == "errors" else side.degraded


def _percent(found: Interval) -> str:
    return _interval_text(found, by=100, unit=" %")


def _plain(found: Interval) -> str:
    return _interval_text(found, by=1, unit="")


def _interval_text(found: Interval, *, by: int, unit: str) -> str:
    if math.isnan(found.value):
        return "-"
    ends = " to ".join(f"{end * by:.3g}" for end in (found.low, found.high))
    return f"{found.value * by:.3g}{unit} ({ends})"


def _money(cents: int) -> str:
    return f"{cents / 100:,.2f}"


_IDLE_S = 1.0
_BROKEN = 1  # exit status: a gate is broken


def report(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Challenger to report; if omitted, the one on trial, or the last one."
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            help="Table of what users did: credit it to the releases of interleaved "
            "lists instead. Needs --user, --item and --time.",
        ),
    ] = None,
    user: UserColumn = None,
    item: ItemColumn = None,
    event_time: TimeColumn = None,
    action: ActionColumn = None,
    within: Annotated[
        str, typer.Option(help="Time after a list in which an event counts.")
    ] = "1d",
    folder: Folder = None,
    keys: Keys = None,
    as_json: Json = False,
    picture: Picture = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
) -> None:
    """
    Report a trial so far: flips, money, scores, times, errors, gates.

    Exit status 1: a gate is broken. With --events: report which release users prefer,
    from the interleaved lists of the sealed journal.
    """

    from tollgate.challenger.trial_gates import broken
    from tollgate.challenger.trial_report import make_report
    from tollgate.repository.gate_limits import read_gates
    from tollgate.repository.releases.served_versions import served_policy, served_spec

    chosen = console.settings(repository=repository, product=product, state=state)
    if events is not None:
        from tollgate.cli.table_files import read_item_events

        if user is None or item is None or event_time is None:
            raise InputError("--events", "needs --user, --item and --time, its columns")
        if picture is not None:
            raise InputError("--picture", "does not go with --events")
        _report_interleaving(
            chosen,
            read_item_events(
                events, user=user, item=item, time=event_time, action=action
            ),
            challenger=name or "",
            within=within,
            folder=folder,
            keys=keys,
            as_json=as_json,
        )
        return
    options = {"--user": user, "--item": item, "--time": event_time, "--action": action}
    for option, value in (*options.items(), ("--folder", folder), ("--keys", keys)):
        if value is not None:
            raise InputError(option, "goes with --events")
    with open_for_reading(chosen) as repository_here:
        trial = _trial_state(chosen, repository_here, name=name)
        gates = read_gates(repository_here, product=chosen.product)
        amount = served_spec(repository_here, product=chosen.product).amount
        if not trial.groups:  # no row has named the outcomes yet
            policy = served_policy(repository_here, product=chosen.product)
            trial.outcomes = policy.outcomes.words
    summary = make_report(trial, gates)
    if picture is not None:
        from tollgate.challenger.trial_report import draw

        draw(summary, trial, picture)
    if as_json:
        # JSON has no NaN and no infinity, which stand for unknown values: write null.
        console.print_json(summary)
    else:
        for table in report_tables(summary, amount=amount):
            console.out.print(table, highlight=False)
    if picture is not None:
        console.say(f"drawn: {picture}")
    if broken(list(summary.verdicts)):
        raise typer.Exit(_BROKEN)


def _report_interleaving(
    chosen: Settings,
    events: ItemEvents,
    *,
    challenger: str,
    within: str,
    folder: Path | None,
    keys: Path | None,
    as_json: bool,
) -> None:
    """Credit events to the releases of interleaved lists, and print the result."""
    from tollgate.audit.chain.links import link_paths, no_journal
    from tollgate.audit.releases.archive import ReleaseArchive
    from tollgate.audit.worker.pseudonyms import FILE, Subjects
    from tollgate.challenger.interleaving import compare_interleaved
    from tollgate.cli.decisions.journal_commands import (
        default_folder,
        default_keys,
        journal_chain,
        seconds,
    )

    within_s = seconds(within, flag="--within")
    place = folder or default_folder(chosen)
    if not link_paths(place):
        raise no_journal(place)
    keys = keys or default_keys(place)
    if not (keys / FILE).is_file():
        raise InputError(keys, "holds no keys of subjects, which find users' lists")
    chain = journal_chain(place, None, product=chosen.product)
    subjects = Subjects(keys)
    found = compare_interleaved(
        chain,
        ReleaseArchive(chain),
        repository=chosen.repository_path,
        challenger=challenger,
        events=events,
        subjects=subjects,
        within_s=within_s,
    )
    subjects.close()
    if as_json:
        console.print_json(found)
        return
    console.result(
        f"interleaved: {found.challenger} with {found.champion}; {found.lists:,} lists "
        f"of {found.users:,} users, events within {within}; by event: items with one "
        "by the release that picked them, users with more of them for "
        f"{found.challenger} or against it; share at 95 %, sign test"
    )
    table = console.number_table(
        *("event", found.champion, found.challenger),
        *("for", "against", "ties", "share", "p"),
    )
    for one in found.preferences:
        table.add_row(
            one.action,
            *(f"{n:,}" for n in (one.champion, one.challenger)),
            *(f"{n:,}" for n in (one.wins, one.losses, one.ties)),
            _percent(one.share),
            f"{one.p_value:.2g}",
        )
    console.out.print(table, highlight=False)


def run(
    journal_url: JournalUrl = None,
    judge_every: Annotated[
        str, typer.Option(help="Interval at which counts are saved and gates checked.")
    ] = "2s",
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    until_idle: UntilIdle = False,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
) -> None:
    """Monitor trials, and end those that break a gate, until Ctrl-C or SIGTERM."""
    from tollgate.audit.chain.segment_files import lock
    from tollgate.audit.worker.chunk_source import TRIAL_GROUP, ChunkSource
    from tollgate.challenger.challenger_worker import (
        WORKER_LOCK,
        TrialMetrics,
        TrialWorker,
    )
    from tollgate.challenger.trials import folder_of
    from tollgate.cli.decisions.journal_commands import seconds

    chosen = console.settings(
        repository=repository, product=product, state=state, journal_url=journal_url
    )
    require_metrics_port(metrics_port, host=metrics_host)
    folder = folder_of(chosen.state_path, chosen.product)
    require_no_mirror(chosen)
    here, refresh = open_refreshable(chosen)
    refresh()
    folder.mkdir(parents=True, exist_ok=True)
    url = running_server.journal_url(chosen)
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
    console.result(
        f"counted {tally.rows:,} decisions; unreadable {tally.unreadable:,}, retries "
        f"{tally.retries:,}, ended {len(tally.ended)}"
    )


def _trial_state(chosen: Settings, repository: Path, *, name: str | None) -> TrialState:
    """
    Find the counts to report.

    Raises:
        InputError: There are none.
    """
    import time

    from tollgate.challenger.trials import current_trials, folder_of, load, newest
    from tollgate.repository.gate_limits import read_gates

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
