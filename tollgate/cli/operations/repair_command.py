"""Apply purchases that the store missed: `tollgate repair drain`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console, running_server
from tollgate.cli.options import Json, State, StoreUrl
from tollgate.errors import InputError, SetupError
from tollgate.settings import Settings

if TYPE_CHECKING:
    from tollgate.repair.drain import DrainResult

Spool = Annotated[
    Path | None, typer.Option(help="Spool folder to drain.", show_default="STATE/spool")
]
Rate = Annotated[
    float,
    typer.Option(help="Maximum events per second, to leave capacity for decisions."),
]


def drain(
    state: State = None,
    store_url: StoreUrl = None,
    spool: Spool = None,
    rate: Rate = 4_000,
    as_json: Json = False,
) -> None:
    """
    Apply the purchases that the store missed; `tollgate up` also does this on its own.
    """
    chosen = console.settings(
        state=state, store_url=store_url, spool=str(spool) if spool else None
    )
    if spool is not None and not spool.is_dir():
        raise InputError("--spool", f"{spool} is no folder")
    drained = drain_once(chosen, rate=rate)
    if drained is None:
        raise SetupError("the spool is being drained", remedy="wait for it to end")
    if as_json:
        console.print_json(drained)
    else:
        print_drained(drained)


def print_drained(drained: Mapping[str, DrainResult]) -> None:
    """Print the result of each spool."""
    from tollgate.repair.drain import drain_text

    for name, done in drained.items():
        console.out.print(f"{name}: {drain_text(done)}", highlight=False)


def drain_once(chosen: Settings, *, rate: float) -> dict[str, DrainResult] | None:
    """
    Drain all spools; return the result by spool, None if another drain is running.
    """
    from tollgate.repair.drain import STORE_DEADLINE_S, SpoolDrain
    from tollgate.repair.spool_segments import segments, spools
    from tollgate.server.triton.launcher import SPOOL_FOLDER
    from tollgate.store.redis.cluster_store import open_store

    folder = Path(chosen.spool or chosen.state_path / SPOOL_FOLDER)
    store = open_store(running_server.store_url(chosen), deadline_s=STORE_DEADLINE_S)
    found = spools(folder)
    drained = {}
    for spool in found:
        done = SpoolDrain(spool, store, rate_per_s=rate).run()
        if done is None:
            return None
        drained[spool.name] = done
    left = sum(len(segments(spool)) for spool in found)
    if left:
        console.say(f"{left} segments left: still being written, or unreadable here")
    return drained
