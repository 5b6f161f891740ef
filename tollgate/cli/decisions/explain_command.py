"""Explain why a purchase got its decision: `tollgate explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console, running_server
from tollgate.cli.decisions.journal_commands import (
    Folder,
    Keys,
    default_folder,
    default_keys,
)
from tollgate.cli.options import Json, Product, Repository, State

if TYPE_CHECKING:
    from tollgate.audit.review.explanation import ExplainedRecord
    from tollgate.settings import Settings


def explain(
    decision: Annotated[
        str, typer.Argument(help="Transaction id, or WRITER:NUMBER of a record.")
    ],
    customer: Annotated[
        str | None,
        typer.Option(
            help="Customer id of the purchase; if omitted, the keys of all "
            "customers are tried."
        ),
    ] = None,
    journal_url: Annotated[
        str | None,
        typer.Option(
            help="URL of the Redis with the journal stream, for decisions "
            "that are not sealed yet.",
            show_default="the store",
        ),
    ] = None,
    folder: Folder = None,
    keys: Keys = None,
    as_json: Json = False,
    notice: Annotated[
        bool,
        typer.Option(
            "--notice", help="Print the notice to the applicant: action and reasons."
        ),
    ] = False,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
) -> None:
    """Explain a decision: rules, thresholds, and the features that moved the score."""
    import msgspec

    from tollgate.errors import InputError

    chosen = console.settings(
        product_is_known=folder is None,
        product=product,
        repository=repository,
        state=state,
        journal_url=journal_url,
    )
    place = folder or default_folder(chosen)
    try:
        found = _explain_sealed(
            decision, place, keys or default_keys(place), chosen, customer=customer
        )
    except InputError as exc:
        pending = _explain_pending(decision, place, chosen, instead=exc)
        if pending is None:
            raise
        found = pending
    if notice:
        from tollgate.audit.review.notice import notice_text

        _line(notice_text(found, application=decision))
        return
    if as_json:
        console.print_json(msgspec.structs.asdict(found) | {"margin": found.margin})
        return
    _print(found)


def _explain_sealed(
    decision: str, place: Path, keys: Path, chosen: Settings, *, customer: str | None
) -> ExplainedRecord:
    """Explain a sealed decision; raise InputError if there is none."""
    from tollgate.audit.releases.archived_release import newest_archived_release
    from tollgate.audit.releases.record_rows import read_table
    from tollgate.audit.review.explanation import explain_record
    from tollgate.audit.review.lookup import find_record
    from tollgate.audit.worker.pseudonyms import FILE, Subjects

    subjects = Subjects(keys) if (keys / FILE).exists() else None
    found = find_record(place, decision, subjects=subjects, customer=customer)
    return explain_record(
        read_table(place, found.link)[found.row : found.row + 1],
        place=f"link {found.link.number}, row {found.row}",
        product=found.link.product,
        archived=newest_archived_release(place, found.values["release"]),
        repository=_repository(chosen),
    )


def _explain_pending(
    decision: str, place: Path, chosen: Settings, *, instead: object
) -> ExplainedRecord | None:
    """
    Explain a decision that is still in the stream; return None if it is not there.
    """
    from tollgate.audit.chain.chain import Chain
    from tollgate.audit.chain.links import link_paths
    from tollgate.audit.releases.archive import ReleaseArchive, served_specs
    from tollgate.audit.releases.archived_release import newest_archived_release
    from tollgate.audit.review.explanation import explain_record
    from tollgate.audit.review.pending import find_pending, pending_table
    from tollgate.errors import TollgateError

    try:
        url = running_server.journal_url(chosen)
        records = find_pending(url, product=chosen.product, wanted=decision)
    except TollgateError as exc:
        console.say(f"not in the journal ({instead}), and not looked for in the stream")
        raise exc from None
    if records is None:
        return None
    known = _repository(chosen)
    specs = served_specs(known, chosen.product) if known else {}
    releases = archived = None
    if link_paths(place):
        releases = ReleaseArchive(
            Chain(place, product=chosen.product), repository=known
        )
        archived = newest_archived_release(place, records.release)
    return explain_record(
        pending_table(records, spec=specs.get(records.spec_hash), releases=releases),
        place="the stream, not sealed yet",
        product=chosen.product,
        archived=archived,
        repository=known,
    )


def _repository(chosen: Settings) -> Path | None:
    return chosen.repository_path if chosen.repository_path.is_dir() else None


def _print(found: ExplainedRecord) -> None:
    score = "no score" if found.score is None else f"score {found.score:.4f}"
    _line(f"{found.decision}, {score}, by {found.release} at {found.decided}")
    _line(f"record {found.record}, {found.place}")
    if found.threshold is not None:
        one = found.threshold
        decline = (
            "no score declines"
            if one.decline is None
            else f"decline from {one.decline:g}"
        )
        _line(
            f"thresholds of segment {one.segment}: review from {one.review:g}, "
            f"{decline}"
        )
    for rule in found.rules:
        _line(f"rule {rule.name} held: {rule.value} ({rule.meaning})")
    for bit in found.degraded:
        _line(f"{bit.name}: {bit.value}")
    if found.unexplained:
        _line(f"no exact contributions: {found.unexplained}")
    else:
        _print_contributions(found)
    reasons = [one.text for one in found.reasons] or [
        f"{one.value or one.name}" for one in found.codes
    ]
    if reasons:
        _line("reasons for the person:")
    for number, text in enumerate(reasons, start=1):
        _line(f"  {number}. {text}")


def _print_contributions(found: ExplainedRecord) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for at, name in enumerate(("feature", "value", "moved the score by")):
        table.add_column(name, justify="right" if at else "left")
    for one in found.contributions:
        table.add_row(one.feature, f"{one.value:,.6g}", f"{one.amount:+.4f}")
    console.out.print(table)
    _line(
        f"{found.expected:+.4f} before anything is known, {found.margin:+.4f} with it "
        "(the score's margin; of two classes its log-odds)"
    )


def _line(text: str) -> None:
    console.out.print(text, highlight=False, soft_wrap=True, markup=False)
