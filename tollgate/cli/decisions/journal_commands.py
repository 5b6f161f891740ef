"""Seal, verify, erase and retain decision records: `tollgate journal`."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console, running_server
from tollgate.cli.metrics_port import (
    LOOPBACK,
    MetricsHost,
    MetricsPort,
    require_metrics_port,
    serve_metrics,
)
from tollgate.cli.options import (
    UTC_TIMES,
    Customer,
    DecisionId,
    ExtraLabels,
    JournalUrl,
    Json,
    Product,
    Repository,
    State,
    UntilIdle,
)
from tollgate.cli.repositories import open_with_safe_refresh
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import InputError
from tollgate.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tollgate.audit.chain.chain import Chain
    from tollgate.audit.chain.verification import VerificationResult
    from tollgate.audit.releases.journal_replay import ReleaseReplay

# Declare options for a journal's folder, keys and anchor, with their defaults.

Folder = Annotated[
    Path | None,
    typer.Option(help="Folder of the journal.", show_default="STATE/journal/PRODUCT"),
]
Keys = Annotated[
    Path | None,
    typer.Option(help="Folder of the subjects' keys.", show_default="FOLDER.keys"),
]
Anchor = Annotated[
    Path | None,
    typer.Option(
        help="File with the hash of every link, best stored where others cannot write.",
        show_default="FOLDER.anchor",
    ),
]


def default_folder(chosen: Settings) -> Path:
    """Return the default folder of a product's journal, in the state folder."""
    return chosen.state_path / "journal" / chosen.product


def default_keys(folder: Path) -> Path:
    """Return the default folder of a journal's keys."""
    return folder.with_name(f"{folder.name}.keys")


def default_anchor(folder: Path) -> Path:
    """Return the default file of a journal's anchor, which lists every link."""
    return folder.with_name(f"{folder.name}.anchor")


_IDLE_S = 1.0


def run(
    journal_url: JournalUrl = None,
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
    until_idle: UntilIdle = False,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
) -> None:
    """Seal decisions from the stream into segments, until Ctrl-C or SIGTERM."""
    from tollgate.audit.chain.segment_files import lock
    from tollgate.audit.releases.archive import ReleaseArchive
    from tollgate.audit.worker.audit_worker import (
        WORKER_LOCK,
        JournalWorker,
        SealFollowUp,
        WorkerMetrics,
    )
    from tollgate.audit.worker.chunk_source import ChunkSource
    from tollgate.audit.worker.pseudonyms import Subjects
    from tollgate.audit.worker.sealing import Sealer

    chosen = console.settings(
        product=product, repository=repository, state=state, journal_url=journal_url
    )
    require_metrics_port(metrics_port, host=metrics_host)
    place = folder or default_folder(chosen)
    seal_s = seconds(seal_after, flag="--seal-after")
    keep_s = seconds(keep, flag="--keep") if keep else None
    chain = journal_chain(place, anchor, product=chosen.product)
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
                running_server.journal_url(chosen), product=chosen.product, group=group
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
    console.result(
        f"sealed {tally.records:,} decisions in {tally.segments:,} segments; "
        f"dead letters {tally.dead_letters:,}, retries {tally.retries:,}"
    )


def verify(
    folder: Annotated[Path, typer.Argument(help="Folder of the journal.")],
    anchor: Anchor = None,
    as_json: Json = False,
) -> None:
    """
    Verify every link, file and record; exit status 1 if one differs from its seal.
    """
    from tollgate.audit.chain.verification import verify as prove

    with console.progress("proving") as advance:
        proof = prove(folder, anchor=anchor or default_anchor(folder), progress=advance)
    if anchor is not None and not proof.anchored:
        raise InputError(anchor, "holds no mark of a journal")
    if as_json:
        console.print_json(proof)
    for finding in () if as_json else proof.findings:
        console.result(str(finding))
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
    from tollgate.audit.chain.links import now_us, utc_text
    from tollgate.audit.worker.pseudonyms import FILE, Subjects

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
        console.result(
            f"erased {sum(erased)} of {len(erased)} subjects; "
            f"{len(erased) - sum(erased)} had no key"
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


def journal_chain(place: Path, anchor: Path | None, *, product: str) -> Chain:
    """Return the journal of a folder, which need not exist, with its anchor."""
    from tollgate.audit.chain.anchor import AnchorFile
    from tollgate.audit.chain.chain import Chain

    file = AnchorFile(anchor or default_anchor(place))
    return Chain(place, product=product, anchor=file)


def seconds(text: str, *, flag: str) -> float:
    """
    Read the duration of a flag, in seconds.

    Raises:
        InputError: The text is no duration; the message names the flag.
    """
    from tollgate.features.spec.spec_document import duration_us

    try:
        return duration_us(text) / 1e6
    except ValueError as exc:
        raise InputError(flag, str(exc)) from exc


# Reuse sealed decisions: `journal replay` and `journal dataset`.

_DIFFERENT = 1  # exit status


def replay(
    folder: Annotated[Path, typer.Argument(help="Folder of the journal.")],
    release: Annotated[
        str | None,
        typer.Option(
            help="Release to decide all records with.",
            show_default="each record's own",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Allowed difference between the new and the recorded probability.",
            show_default="none for trees; 1e-5 for graphs that multiply matrices",
        ),
    ] = None,
    anchor: Anchor = None,
    as_json: Json = False,
    product: Product = None,
    repository: Repository = None,
) -> None:
    """
    Decide sealed records again, and list those that come out differently.

    Exit status 1: a record differs, or a release is no longer available.
    """

    from tollgate.audit.releases.archive import ReleaseArchive
    from tollgate.audit.releases.journal_replay import replay as decide_again

    chosen = console.settings(
        product_is_known=False, product=product, repository=repository
    )
    chain = opened_chain(folder, anchor, product=chosen.product)
    known = chosen.repository_path if chosen.repository_path.is_dir() else None
    with console.progress("deciding again") as advance:
        found = decide_again(
            chain,
            ReleaseArchive(chain),
            repository=known,
            through=release,
            tolerance=tolerance,
            progress=advance,
        )
    if as_json:
        console.print_json(found)
    else:
        for one in found.differences:
            text = f"{one.record} of {one.release}: {'; '.join(one.what)}"
            console.result(text)
        more = sum(one.differing for one in found.parts) - len(found.differences)
        if more:
            console.result(f"… and {more:,} more")
        for part in found.parts:
            for line in _replay_lines(part):
                console.result(line)
        if not found.parts:
            console.out.print("the journal holds no decision")
    if not found.sound:
        raise typer.Exit(_DIFFERENT)


def _replay_lines(part: ReleaseReplay) -> list[str]:
    """Describe how many records of a release come out the same; how others differ."""
    name = part.release
    if part.through != name:
        name += f", through {part.through}"
    if part.problem:
        return [f"{name}: {part.rows:,} decisions not decided again: {part.problem}"]
    counts = [f"{part.same:,} of {part.rows:,} the same"]
    if part.differing:
        ways = ", ".join(f"{count:,} in {one}" for one, count in part.aspects.items())
        counts.append(f"{part.differing:,} otherwise ({ways})")
    if part.withheld:
        counts.append(f"{part.withheld:,} without consent to keep the vector")
    if part.foreign:
        counts.append(f"{part.foreign:,} of other features or another catalogue")
    if part.without_list:
        counts.append(f"{part.without_list:,} without the details of their list")
    promise = f" ({part.promise})" if part.promise else ""
    return [f"{name}: {', '.join(counts)}{promise}"]


def opened_chain(folder: Path, anchor: Path | None, *, product: str) -> Chain:
    """
    Open an existing journal.

    Raises:
        InputError: There is no journal.
    """
    from tollgate.audit.chain.links import link_paths, no_journal

    if not link_paths(folder):
        raise no_journal(folder)
    return journal_chain(folder, anchor, product=product)


def dataset(
    out: Annotated[Path, typer.Argument(help="Path of the Parquet file to write.")],
    folder: Folder = None,
    labels: ExtraLabels = None,
    as_of: Annotated[
        datetime | None,
        typer.Option(
            formats=UTC_TIMES,
            help="Leave out decisions and labels after this time, UTC.",
            show_default="now",
        ),
    ] = None,
    legitimate_after: Annotated[
        str | None,
        typer.Option(
            help="Age, such as 30d, from which an unlabelled decision counts "
            "as legitimate.",
            show_default="only labelled decisions are taken",
        ),
    ] = None,
    release: Annotated[
        list[str] | None,
        typer.Option(help="Include only decisions of this release; may be repeated."),
    ] = None,
    keys: Keys = None,
    anchor: Anchor = None,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """Write served feature vectors with their outcomes, as rows to train on."""
    import io

    from tollgate.audit.chain.links import now_us, utc_text
    from tollgate.audit.releases.labelled_decisions import dataset as make

    if out.suffix != ".parquet":
        raise InputError(out, "is not called .parquet")
    chosen = console.settings(
        product_is_known=folder is None,
        product=product,
        repository=repository,
        state=state,
    )
    place = folder or default_folder(chosen)
    chain = opened_chain(place, anchor, product=chosen.product)
    until_us = now_us()
    if as_of is not None:
        until_us = int(as_of.replace(tzinfo=timezone.utc).timestamp() * 1e6)
    age_us = None
    if legitimate_after is not None:
        age_us = int(seconds(legitimate_after, flag="--legitimate-after") * 1e6)
    found = make(
        chain,
        as_of_us=until_us,
        more_labels=_labels(labels, chosen, keys or default_keys(place)),
        legitimate_after_us=age_us,
        releases=release or (),
    )
    content = io.BytesIO()
    found.table.write_parquet(content)
    console.write_private(out, content.getvalue())
    left = {
        "without consent": found.withheld,
        "of other features or releases": found.foreign,
        "decided before": found.repeated,
        "without a label": found.unlabelled,
    }
    if as_json:
        report = {
            "rows": len(found.table),
            "decisions": found.decisions,
            "frauds": found.frauds,
            "features": found.spec,
            "as_of": utc_text(until_us),
            "file": out,
            "left_out": left,
        }
        console.print_json(report)
        return
    omitted = ", ".join(f"{count:,} {why}" for why, count in left.items() if count)
    console.result(
        f"{len(found.table):,} of {found.decisions:,} decisions, {found.frauds:,} "
        f"frauds, features {found.spec}, as of {utc_text(until_us)} → {out}"
        + (f"; left out: {omitted}" if omitted else "")
    )


def _labels(path: Path | None, chosen: Settings, keys: Path) -> pl.DataFrame | None:
    """Read labels of people who have a key, under their pseudonyms."""
    if path is None:
        return None
    from tollgate.audit.worker.label_journal import pseudonymised, read_labels
    from tollgate.audit.worker.pseudonyms import Subjects
    from tollgate.repository.releases.served_versions import served_spec

    spec = served_spec(chosen.repository_path, product=chosen.product)
    subjects = Subjects(keys)
    try:
        return pseudonymised(read_labels(path, spec=spec), spec=spec, subjects=subjects)
    finally:
        subjects.close()


# Export one decision for a reviewer: `journal export`.


def export(
    decision: DecisionId,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Path of the HTML page to write.", show_default="decision.html"
        ),
    ] = None,
    customer: Customer = None,
    folder: Folder = None,
    keys: Keys = None,
    anchor: Anchor = None,
    product: Product = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """Write one decision, with its proof, as a page for a reviewer."""
    from tollgate.audit.chain.anchor import read_anchor
    from tollgate.audit.releases.archived_release import newest_archived_release
    from tollgate.audit.review.list_text import explain_list
    from tollgate.audit.review.lookup import find_record
    from tollgate.audit.review.record_text import decision_page
    from tollgate.audit.worker.pseudonyms import FILE, Subjects

    chosen = console.settings(
        product_is_known=folder is None, product=product, state=state
    )
    place = folder or default_folder(chosen)
    known = keys or default_keys(place)
    found = find_record(
        place,
        decision,
        subjects=Subjects(known) if (known / FILE).exists() else None,
        customer=customer,
        marks=read_anchor(anchor or default_anchor(place)),
    )
    archived = newest_archived_release(place, found.values["release"])
    target = out or Path("decision.html")
    models = chosen.repository_path
    ranked = explain_list(
        found.values,
        product=found.link.product,
        archived=archived,
        repository=models if models.is_dir() else None,
    )
    page = decision_page(found, archived, ranked=ranked)
    console.write_private(target, page.encode())
    for problem in found.evidence.problems:
        console.say(f"not as it was sealed: {problem}")
    decision, release = found.values["decision"], found.values["release"]
    if as_json:
        report = {
            "decision": decision,
            "release": release,
            "page": target,
            "problems": found.evidence.problems,
        }
        console.print_json(report)
    else:
        console.result(f"{decision} of {release} → {target}")
    if found.evidence.problems:
        raise typer.Exit(1)


# Remove old segments, with or without a running worker: `journal retain`.


def retain(
    keep: Annotated[
        str, typer.Option(help="Retention period of segments, such as 400d.")
    ],
    folder: Folder = None,
    anchor: Anchor = None,
    product: Product = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """
    Remove segments older than the retention period; their links stay in the chain.
    """
    from tollgate.audit.chain.links import link_name, no_journal, now_us
    from tollgate.audit.worker.retention import retain as remove

    chosen = console.settings(
        product_is_known=folder is None, product=product, state=state
    )
    place = folder or default_folder(chosen)
    before_us = now_us() - int(seconds(keep, flag="--keep") * 1e6)
    if not (place / link_name(1)).is_file():
        raise no_journal(place)
    chain = journal_chain(place, anchor, product=chosen.product)
    tombstone = remove(chain, before_us=before_us)
    count = tombstone.facts["records"] if tombstone else "0"
    if as_json:
        console.print_json({"removed": int(count)})
    else:
        console.result(f"removed {int(count):,} decisions")
