"""Reuse sealed decisions: `journal replay` and `journal dataset`."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console
from tollgate.cli.journal_options import (
    Anchor,
    Folder,
    Keys,
    default_anchor,
    default_folder,
    default_keys,
)
from tollgate.cli.options import Json, Product, Repository, State

if TYPE_CHECKING:
    import polars as pl

    from tollgate.audit.chain import Chain
    from tollgate.audit.replay import ReleaseReplay
    from tollgate.settings import Settings

_DIFFERENT = 1  # exit status
_TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"]


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

    from tollgate.audit.releases import ReleaseArchive
    from tollgate.audit.replay import replay as decide_again

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
            console.out.print(text, highlight=False, soft_wrap=True, markup=False)
        more = sum(one.differing for one in found.parts) - len(found.differences)
        if more:
            console.out.print(f"… and {more:,} more", highlight=False)
        for part in found.parts:
            for line in _replay_lines(part):
                console.out.print(line, highlight=False, soft_wrap=True, markup=False)
        if not found.parts:
            console.out.print("the journal holds no decision")
    if not found.sound:
        raise typer.Exit(_DIFFERENT)


def _replay_lines(part: ReleaseReplay) -> list[str]:
    """
    Describe how many records of one release come out the same, and how others differ.
    """
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
        counts.append(f"{part.foreign:,} of other features")
    promise = f" ({part.promise})" if part.promise else ""
    return [f"{name}: {', '.join(counts)}{promise}"]


def opened_chain(folder: Path, anchor: Path | None, *, product: str) -> Chain:
    """
    Open an existing journal.

    Raises:
        InputError: There is no journal.
    """
    from tollgate.audit.anchor import AnchorFile
    from tollgate.audit.chain import Chain
    from tollgate.audit.links import link_paths, no_journal

    if not link_paths(folder):
        raise no_journal(folder)
    file = AnchorFile(anchor or default_anchor(folder))
    return Chain(folder, product=product, anchor=file)


def dataset(
    out: Annotated[Path, typer.Argument(help="Path of the Parquet file to write.")],
    folder: Folder = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Labels to add to the sealed ones: Parquet, CSV or JSON lines."
        ),
    ] = None,
    as_of: Annotated[
        datetime | None,
        typer.Option(
            formats=_TIMES,
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

    from tollgate.audit.dataset import dataset as make
    from tollgate.audit.times import now_us, utc_text
    from tollgate.cli.journal import seconds
    from tollgate.errors import InputError
    from tollgate.repository.atomic import replace_file

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
    try:
        replace_file(out, content.getvalue(), mode=0o600)
    except OSError as exc:
        raise InputError(out, f"cannot be written: {exc.strerror}") from exc
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
    console.out.print(
        f"{len(found.table):,} of {found.decisions:,} decisions, {found.frauds:,} "
        f"frauds, features {found.spec}, as of {utc_text(until_us)} → {out}"
        + (f"; left out: {omitted}" if omitted else ""),
        highlight=False,
        soft_wrap=True,
    )


def _labels(path: Path | None, chosen: Settings, keys: Path) -> pl.DataFrame | None:
    """Read labels of people who have a key, under their pseudonyms."""
    if path is None:
        return None
    from tollgate.audit.labels import pseudonymised, read_labels
    from tollgate.audit.subjects import Subjects
    from tollgate.cli.pipeline import served_spec

    spec = served_spec(chosen.repository_path, product=chosen.product)
    subjects = Subjects(keys)
    try:
        return pseudonymised(read_labels(path, spec=spec), spec=spec, subjects=subjects)
    finally:
        subjects.close()
