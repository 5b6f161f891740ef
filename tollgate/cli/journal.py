"""Seal, verify, erase and retain decision records: `tollgate journal`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console, running
from tollgate.cli.journal_options import (
    Anchor,
    Folder,
    Keys,
    default_anchor,
    default_folder,
    default_keys,
)
from tollgate.cli.options import Json, Product, Repository, State
from tollgate.cli.repositories import open_with_safe_refresh
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
    from collections.abc import Sequence

    from tollgate.audit.verify import VerificationResult

_IDLE_S = 1.0


def run(
    journal_url: Annotated[
        str | None,
        typer.Option(
            help="URL of the Redis or Redis Cluster with the journal stream.",
            show_default="the store",
        ),
    ] = None,
    folder: Folder = None,
    keys: Keys = None,
    anchor: Anchor = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Retention period of segments, such as 400d.", show_default="for ever"
        ),
    ] = None,
    consent: Annotated[
        str | None,
        typer.Option(
            help="Field that gives consent to store the complete row.",
            show_default="as the policies state",
        ),
    ] = None,
    group: Annotated[
        str, typer.Option(help="Redis consumer group; one per journal folder.")
    ] = "journal",
    seal_rows: Annotated[
        int, typer.Option(min=1, help="Decisions per segment.")
    ] = 50_000,
    seal_after: Annotated[
        str, typer.Option(help="Time after which a smaller segment is sealed.")
    ] = "30s",
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    until_idle: Annotated[
        bool, typer.Option(help="End after a second without new records.")
    ] = False,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
) -> None:
    """Seal decisions from the stream into segments, until Ctrl-C or SIGTERM."""
    from tollgate.audit.afterwards import SealFollowUp
    from tollgate.audit.anchor import AnchorFile
    from tollgate.audit.chain import Chain
    from tollgate.audit.files import lock
    from tollgate.audit.metrics import WorkerMetrics
    from tollgate.audit.releases import ReleaseArchive
    from tollgate.audit.sealing import Sealer
    from tollgate.audit.source import ChunkSource
    from tollgate.audit.subjects import Subjects
    from tollgate.audit.worker import WORKER_LOCK, JournalWorker

    chosen = console.settings(
        product=product, repository=repository, state=state, journal_url=journal_url
    )
    require_metrics_port(metrics_port, host=metrics_host)
    place = folder or default_folder(chosen)
    seal_s = seconds(seal_after, flag="--seal-after")
    keep_s = seconds(keep, flag="--keep") if keep else None
    chain = Chain(
        place,
        product=chosen.product,
        anchor=AnchorFile(anchor or default_anchor(place)),
    )
    with lock(place / WORKER_LOCK, wait=False) as alone:
        if not alone:
            raise InputError(place, "another worker seals into this folder")
        known, reread = open_with_safe_refresh(chosen)
        releases = ReleaseArchive(
            chain, repository=known, consent=consent, reread=reread
        )
        follow_up = SealFollowUp(
            chain, releases, repository=known, keep_s=keep_s, say=console.say
        )
        follow_up()  # finish the work that an earlier worker left undone
        metrics = WorkerMetrics(chosen.product)
        serve_metrics(metrics.registry, metrics_port, host=metrics_host)
        worker = JournalWorker(
            ChunkSource(
                running.journal_url(chosen), product=chosen.product, group=group
            ),
            Sealer(
                chain,
                subjects=Subjects(keys or default_keys(place)),
                releases=releases,
            ),
            chain=chain,
            seal_rows=seal_rows,
            seal_s=seal_s,
            on_sealed=follow_up,
            metrics=metrics,
        )
        _run(worker.run, until_idle=until_idle)
    tally = worker.tally
    console.out.print(
        f"sealed {tally.records:,} decisions in {tally.segments:,} segments; "
        f"dead letters {tally.buried:,}, retries {tally.retries:,}",
        highlight=False,
    )


def verify(
    folder: Annotated[Path, typer.Argument(help="Folder of the journal.")],
    anchor: Anchor = None,
    as_json: Json = False,
) -> None:
    """
    Verify every link, file and record; exit status 1 if one differs from its seal.
    """
    from tollgate.audit.verify import verify as prove

    with console.progress("proving") as advance:
        proof = prove(folder, anchor=anchor or default_anchor(folder), progress=advance)
    if anchor is not None and not proof.anchored:
        raise InputError(anchor, "holds no mark of a journal")
    if as_json:
        console.print_json(proof)
    for finding in () if as_json else proof.findings:
        console.out.print(str(finding), highlight=False, soft_wrap=True, markup=False)
    for line in () if as_json else _result_lines(proof):
        console.say(line)
    if proof.findings:
        raise typer.Exit(1)


def erase(
    customer: Annotated[
        str | None, typer.Option(help="Id of the customer to erase.")
    ] = None,
    subject: Annotated[
        list[str] | None,
        typer.Option(help="Another subject to erase, as ENTITY=ID; may be repeated."),
    ] = None,
    folder: Folder = None,
    keys: Keys = None,
    product: Product = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """Delete people's keys: their records stay sealed but match no person any more."""
    from tollgate.audit.subjects import FILE, Subjects
    from tollgate.audit.times import now_us, utc_text

    wanted = [("customer", customer)] if customer is not None else []
    for text in subject or ():
        entity, found, one = text.partition("=")
        if not found:
            raise InputError("--subject", f"{text!r} is not ENTITY=ID")
        wanted.append((entity, one))
    if not wanted:
        raise InputError("journal erase", "names nobody: give --customer or --subject")
    named = folder is None and keys is None
    chosen = console.settings(product_is_known=named, product=product, state=state)
    place = keys or default_keys(folder or default_folder(chosen))
    if not (place / FILE).exists():
        raise InputError(place, f"there is no {FILE}")
    known = Subjects(place)
    day = utc_text(now_us())[:10]
    erased = [known.erase(entity, one.encode(), day=day) for entity, one in wanted]
    known.close()
    if as_json:
        without = len(erased) - sum(erased)
        console.print_json({"erased": sum(erased), "without_key": without})
    else:
        console.out.print(
            f"erased {sum(erased)} of {len(erased)} subjects; "
            f"{len(erased) - sum(erased)} had no key",
            highlight=False,
        )
    if not all(erased):
        raise typer.Exit(1)


def _run(work: object, *, until_idle: bool) -> None:
    stopped = stop_on_signal()
    console.say("sealing decisions; Ctrl-C ends")
    work(stopped, until_idle_s=_IDLE_S if until_idle else None)  # type: ignore[operator]


def _result_lines(proof: VerificationResult) -> Sequence[str]:
    lines = [
        f"{proof.links:,} links, {proof.records:,} decisions"
        + (f", {proof.removed:,} removed by retention" if proof.removed else "")
        + (": as sealed" if not proof.findings else "")
    ]
    lost = sum(proof.missing.values())
    if lost:
        lines.append(
            f"{lost:,} decisions of {len(proof.missing)} writers never came: "
            "they were dropped, or died with their writer"
        )
    if not proof.anchored:
        lines.append("no anchor: missing links at the end cannot be detected")
    if proof.head is not None:
        lines.append(f"head: link {proof.head.number}, {proof.head.hash}")
    return lines


def seconds(text: str, *, flag: str) -> float:
    """
    Read the duration of a flag, in seconds.

    Raises:
        InputError: The text is no duration; the message names the flag.
    """
    from tollgate.features.document import duration_us

    try:
        return duration_us(text) / 1e6
    except ValueError as exc:
        raise InputError(flag, str(exc)) from exc
