"""Fill the online store from histories: `tollgate materialize` and `rebuild`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console, running_server, table_files
from tollgate.cli.operations import repair_command
from tollgate.cli.options import Json, Product, Repository, State, StoreUrl
from tollgate.cli.repositories import open_for_reading, require_entities
from tollgate.errors import InputError

if TYPE_CHECKING:
    from tollgate.backfill.copying import CopyCounts
    from tollgate.backfill.materialize import MaterializeCounts
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.settings import Settings
    from tollgate.store.redis.redis_store import RedisStore

Histories = Annotated[
    list[Path],
    typer.Argument(help="Histories, oldest first: Parquet, CSV or JSON lines."),
]
Rate = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Maximum events per second; 0 for no limit.",
        show_default="as fast as Redis allows, a third of that while it serves",
    ),
]


def materialize(
    history: Annotated[
        list[Path] | None,
        typer.Argument(help="Histories, oldest first: Parquet, CSV or JSON lines."),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            help="features.yaml to load the store for.", show_default="the released one"
        ),
    ] = None,
    copy_from: Annotated[
        Path | None,
        typer.Option(
            help="features.yaml in service: also copy its events that are "
            "newer than the history."
        ),
    ] = None,
    table: table_files.TableFiles = None,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    rate: Rate = None,
    as_json: Json = False,
) -> None:
    """
    Load histories and tables into the online store; resume after a kill.

    The store may serve meanwhile: the command pauses between writes to leave capacity
    for decisions.
    """
    from tollgate.backfill.copying import check_copy, copy_state
    from tollgate.features.spec.feature_spec import load_spec
    from tollgate.store.redis.cluster_store import open_store

    chosen = console.settings(
        product=product, repository=repository, state=state, store_url=store_url
    )
    filled = load_spec(spec) if spec else _released(chosen)
    require_entities(filled)
    source = load_spec(copy_from) if copy_from else None
    if not (history or table or source):
        raise InputError("materialize", "name a history, a --table or --copy-from")
    if source:
        check_copy(source, filled)  # check before anything is written
    read = table_files.read_tables(table, filled)
    store = open_store(running_server.store_url(chosen), deadline_s=_deadline_s())
    print_line = console.say if as_json else console.result
    loaded = table_files.load_tables(
        read, filled, store, rate=rate, print_line=print_line
    )
    done, newest_us = _histories(
        history or [], filled, store, rate=rate, print_line=print_line
    )
    copied = None
    if source is not None:
        since_us = newest_us - filled.lateness_us if history else 0
        copied = copy_state(source, filled, store, since_us=since_us, rate_per_s=rate)
        print_line(_copy_text(copied))
    if as_json:
        console.print_json({"tables": loaded, "histories": done, "copied": copied})


def rebuild(
    history: Histories,
    table: table_files.TableFiles = None,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    spool: repair_command.Spool = None,
    rate: Annotated[
        float, typer.Option(min=0, help="Maximum events per second; 0 for no limit.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Refill a lost store from tables, histories and the spool, in this order."""
    from tollgate.store.redis.cluster_store import open_store

    chosen = console.settings(
        product=product,
        repository=repository,
        state=state,
        store_url=store_url,
        spool=str(spool) if spool else None,
    )
    filled = _released(chosen)
    require_entities(filled)
    store = open_store(running_server.store_url(chosen), deadline_s=_deadline_s())
    started_s = time.monotonic()
    print_line = console.say if as_json else console.result
    read = table_files.read_tables(table, filled)
    loaded = table_files.load_tables(
        read, filled, store, rate=rate, print_line=print_line
    )
    done, _ = _histories(history, filled, store, rate=rate, print_line=print_line)
    drained = repair_command.drain_once(chosen, rate=rate)
    if drained is None:
        console.say("the server is draining the spool")
    elif not as_json:
        repair_command.print_drained(drained)
    if as_json:
        report = {"tables": loaded, "histories": done, "spools": drained}
        console.print_json(report)
    console.say(f"rebuilt in {time.monotonic() - started_s:.1f} s")


def _released(chosen: Settings) -> FeatureSpec:
    from tollgate.repository.releases.served_versions import served_spec

    with open_for_reading(chosen) as repository:
        return served_spec(repository, product=chosen.product)


def _histories(
    files: list[Path],
    spec: FeatureSpec,
    store: RedisStore,
    *,
    rate: float | None,
    print_line: Callable[[str], None],
) -> tuple[dict[str, MaterializeCounts], int]:
    """Load file after file; return results, and the time of the newest purchase, µs."""
    from tollgate.backfill.materialize import materialize as run
    from tollgate.history import read_history

    newest_us, found = 0, {}
    for file in files:
        with console.progress(f"reading {file.name}"):
            rows = read_history(file, spec=spec)
        started_s = time.monotonic()
        with console.progress("materializing") as advance:
            done = run(spec, rows, store, rate_per_s=rate, progress=advance)
        taken_s = time.monotonic() - started_s
        print_line(f"{file}: {_counts_text(done)}, in {taken_s:.1f} s")
        found[str(file)] = done
        newest_us = max(newest_us, int(rows.event_time_us.max(initial=0)))
    return found, newest_us


def _counts_text(done: MaterializeCounts) -> str:
    parts = [
        f"{done.history:,} purchases, {done.out_of_reach:,} out of reach of any window",
        f"{done.done_before:,} done before",
        f"{done.sent:,} sent with {done.labels:,} labels",
        f"{done.applied:,} applied",
        f"{done.duplicates:,} there already",
    ]
    for number, text in (
        (done.too_late, "behind something newer"),
        (done.foreign, "of damaged values"),
    ):
        if number:
            parts.append(f"{number:,} {text}")
    text = ", ".join(parts)
    if done.full:
        text += f"; {done.full:,} ids have more than their entity's cap: "
        text += f"{done.over_cap:,} of their purchases are not stored (WINDOW_OVERFLOW)"
    return text


def _copy_text(done: CopyCounts) -> str:
    text = f"copied {done.values:,} values: {done.events:,} events, "
    text += f"{done.applied:,} of them new"
    for number, what in ((done.damaged, "damaged"), (done.full, "full")):
        if number:
            text += f"; {number:,} values are {what}"
    return text


def _deadline_s() -> float:
    from tollgate.backfill.materialize import STORE_DEADLINE_S

    return STORE_DEADLINE_S
