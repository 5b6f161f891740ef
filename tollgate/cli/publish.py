"""
Publish a converted model as the next version in the repository: `tollgate publish`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tollgate.cli import console
from tollgate.cli.convert_options import Python
from tollgate.cli.options import Json, Product, Repository
from tollgate.cli.product_options import TrustPickle
from tollgate.cli.repositories import open_for_changes
from tollgate.cli.source_check import (
    COMPARISON_HINT,
    SourceComparison,
    SourceOptions,
    compare_with_source,
)
from tollgate.cli.tables import TableFiles
from tollgate.errors import InputError

if TYPE_CHECKING:
    from tollgate.server.control import Reachable
    from tollgate.settings import Settings


def publish(
    directory: Annotated[
        Path, typer.Argument(help="Folder with model.onnx and artifact.json.")
    ],
    product: Product = None,
    repository: Repository = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="State folder of `tollgate up`; a server that runs there "
            "also loads the version.",
            show_default=".tollgate",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="host:port of the server that loads the version, if not "
            "the one in --state."
        ),
    ] = None,
    admin_secret_file: Annotated[
        Path | None,
        typer.Option(help="File with the admin secret of the server at --url."),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            help="New features.yaml that the model was made for; it becomes "
            "the next version of the features step, together with the "
            "hook.py next to it.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Trained model; served answers to raw rows must equal its "
            "own answers in a separate process.",
            show_default="the one that DIR was converted from",
        ),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            help="Raw feature rows: Parquet, CSV or JSON lines.",
            show_default="those of the conversion",
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            help="Raw purchases instead of --sample; vectors of the newest "
            "2,000 must also be the same online and offline."
        ),
    ] = None,
    table: TableFiles = None,
    compare: Annotated[
        bool, typer.Option(help="Compare served answers with the source model.")
    ] = True,
    trust_pickle: TrustPickle = False,
    python: Python = None,
    dry_load: Annotated[
        bool, typer.Option(help="First load the version into a temporary server.")
    ] = True,
    as_json: Json = False,
) -> None:
    """
    Prove a model and add it as the next version; the active release does not change.
    """
    from tollgate.server import publishing

    chosen = console.settings(product=product, repository=repository, state=state)
    if admin_secret_file is not None and url is None:
        raise InputError("--admin-secret-file", "needs the server's --url")
    given = SourceOptions(
        source=source,
        sample=sample,
        history=history,
        tables=tuple(table or ()),
        trust_pickle=trust_pickle,
        python=python,
    )
    if given.explicit and not compare:
        problem = "compares nothing; leave out --source, --sample and --history"
        raise InputError("--no-compare", problem)
    server = _server(chosen, url=url, secret_file=admin_secret_file)
    asks_server = dry_load or server is not None
    if given.explicit and not asks_server:
        raise InputError("--source", "needs a server to compare; drop --no-dry-load")
    with open_for_changes(chosen) as folder:
        compared = SourceComparison(
            reason="--no-compare" if asks_server else "--no-dry-load"
        )
        if compare and asks_server:
            compared = compare_with_source(
                directory, given, repository=folder, product=chosen.product, spec=spec
            )
        if compared.replayed is not None:
            _print_step(f"{compared.replayed:,} vectors online = offline in every bit")
        published = publishing.publish(
            directory,
            repository=folder,
            product=chosen.product,
            server=server,
            dry_load=dry_load,
            spec=spec,
            answers=compared.answers,
            progress=_print_step,
        )
    if compared.answers is None:
        console.say(
            "served answers were NOT compared with the source model: "
            f"{compared.reason}; {COMPARISON_HINT}"
        )
    elif compared.windows and compared.replayed is None:
        console.say(
            "features were NOT replayed; --history PURCHASES compares their vectors "
            "online with offline"
        )
    if as_json:
        report = msgspec.structs.asdict(published) | {"product": chosen.product}
        console.print_json(report)
        return
    console.out.print(
        f"published  {published.step} version {published.version}\n"
        + (
            ""
            if published.features is None
            else f"features   version {published.features}; release both: tollgate "
            f"release activate --product {chosen.product} --set "
            f"features={published.features} --set model={published.version} "
            "--reason …\n"
        )
        + (
            f"serving    {published.release}, as before"
            if server
            else "serving    no server was notified; it loads what the release names"
        ),
        highlight=False,
        soft_wrap=True,
    )


def _print_step(done: str) -> None:
    """Print one part of the proof."""
    console.err.print(f"[green]✓[/] {done}", highlight=False, soft_wrap=True)


def _server(
    chosen: Settings, *, url: str | None, secret_file: Path | None
) -> Reachable | None:
    """Choose the server that loads the version: the given one, or the local one."""
    from tollgate.server.address import endpoint, find_server

    if chosen.repository_url:
        if url is not None:
            problem = "a server of an object store loads what the release names"
            raise InputError("--url", problem)
        return None
    if url is not None:
        return endpoint(url, secret_file=secret_file)
    found = find_server(chosen.state_path)
    if found is None:
        return None
    if found.repository_name != chosen.repository_name:
        console.say(f"{found.grpc_url} serves {found.repository}: not notified")
        return None
    return found
