"""Create, list and remove products: `tollgate product new|list|remove`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tollgate.cli import console
from tollgate.cli.options import Json, Repository
from tollgate.cli.products.product_options import (
    Amount,
    Columns,
    CostMissed,
    CostReview,
    CostWrongDecline,
    DeclineRate,
    Drop,
    Entity,
    Id,
    Keep,
    Kind,
    Label,
    LabelDelay,
    Model,
    MostFields,
    Name,
    Positive,
    Python,
    ReviewRate,
    Sensitive,
    Table,
    Time,
    TrustPickle,
    Words,
    Yes,
)
from tollgate.cli.repositories import require_repository
from tollgate.errors import InputError
from tollgate.product.choices import MOST_FIELDS

if TYPE_CHECKING:
    from tollgate.product.plan import Plan


def new(
    name: Name,
    table: Table,
    label: Label = "",
    label_delay: LabelDelay = 0.0,
    positive: Positive = None,
    entity: Entity = None,
    time_: Time = None,
    amount: Amount = None,
    id_: Id = None,
    drop: Drop = None,
    sensitive: Sensitive = None,
    keep: Keep = None,
    most_fields: MostFields = MOST_FIELDS,
    model: Model = None,
    trust_pickle: TrustPickle = False,
    python: Python = None,
    columns: Columns = None,
    words: Words = None,
    kind: Kind = "auto",
    cost_missed: CostMissed = None,
    cost_review: CostReview = None,
    cost_wrong_decline: CostWrongDecline = None,
    review_rate: ReviewRate = None,
    decline_rate: DeclineRate = None,
    yes: Yes = False,
    repository: Repository = None,
) -> None:
    """
    Create a product from a table: files, features, model, release; serve it as a test.
    """
    from tollgate.cli.products import product_prompts, product_report
    from tollgate.product.choices import ProductChoices
    from tollgate.product.creation import create_product
    from tollgate.product.model import ModelFile
    from tollgate.product.placement import require_free
    from tollgate.product.plan import make_plan
    from tollgate.product.splitting import DAY_US
    from tollgate.product.thresholds import build_goal

    folder = console.settings(repository=repository).repository_path
    require_free(folder, name)
    if entity and not time_:
        raise InputError(
            "--entity", "windows need times: name their column with --time"
        )
    if label_delay and not time_:
        raise InputError("--label-delay", "needs times: name their column with --time")
    model_file = None
    if model is not None:
        order = tuple(one.strip() for one in columns.split(",")) if columns else ()
        model_file = ModelFile(
            model,
            trust_pickle=trust_pickle,
            columns=order,
            python=python,
            words=words,
        )
    for option, value in (
        ("--columns", columns),
        ("--python", python),
        ("--words", words),
    ):
        if value is not None and model_file is None:
            raise InputError(option, "belongs to a trained model: --model FILE")
    choices = ProductChoices(
        product=name,
        table=table,
        label=label,
        label_delay_us=round(label_delay * DAY_US),
        positive=positive,
        entities=tuple(entity or ()),
        time=time_,
        amount=amount,
        id=id_,
        drop=tuple(drop or ()),
        sensitive=tuple(sensitive or ()),
        keep=tuple(keep or ()),
        # A model from a file needs all of its columns, so their number is not limited.
        most_fields=most_fields if model_file is None else sys.maxsize,
        goal=build_goal(
            missed=cost_missed,
            review=cost_review,
            wrong_decline=cost_wrong_decline,
            review_rate=review_rate,
            decline_rate=decline_rate,
        ),
    )
    ask = not yes and product_prompts.is_terminal()
    choices = product_prompts.prompt_missing(choices, ask=ask)
    steps = console.StepPrinter()

    def show(plan: Plan) -> None:
        product_report.print_plan(plan)
        steps.report("columns classified", f"{len(plan.fields)} columns taken")

    plan = make_plan(choices)
    made = create_product(
        plan,
        repository=folder,
        model=model_file,
        kind=kind,
        report=steps.report,
        progress_bar=console.progress,
        show=show,
    )
    product_report.print_result(plan, made, repository=folder)


def list_products(repository: Repository = None, as_json: Json = False) -> None:
    """List the products of the repository, with the active release of each."""
    from rich.table import Table as Printed

    from tollgate.repository.releases.release_file import find_current, product_names

    chosen = console.settings(repository=repository)
    folder = chosen.repository_path
    require_repository(folder)
    rows: list[dict[str, object]] = []
    for name in product_names(folder):
        release = find_current(folder, product=name)
        rows.append(
            {
                "product": name,
                "release": release.name if release else None,
                "versions": release.versions if release else {},
            }
        )
    if as_json:
        console.print_json(rows)
        return
    table = Printed("product", "release", "versions", box=None, pad_edge=False)
    for row in rows:
        versions = cast("dict[str, int]", row["versions"])
        listed = ", ".join(f"{step}={version}" for step, version in versions.items())
        table.add_row(str(row["product"]), str(row["release"] or "none"), listed)
    console.out.print(table)


def remove(
    name: Name,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove without confirmation.")
    ] = False,
    repository: Repository = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="State folder of `tollgate up`; removal is refused while its "
            "server serves the product.",
            show_default=".tollgate",
        ),
    ] = None,
) -> None:
    """Remove a product from the repository, with all its versions and releases."""
    from tollgate.cli.products import product_prompts
    from tollgate.product.placement import displace, folders_of
    from tollgate.repository.versions import staging

    chosen = console.settings(repository=repository, state=state)
    folder = chosen.repository_path
    require_repository(folder)
    folders = folders_of(folder, name)
    _require_unserved(name, chosen.state_path, folder)
    if not yes:
        if not product_prompts.is_terminal():
            raise InputError(
                "product remove", "removal is permanent: confirm it with --yes"
            )
        if not product_prompts.confirm_removal(name, folder, folders=folders):
            raise typer.Exit(1)
    with staging(folder) as staged:
        staged.version.mkdir()
        displace(folder, folders, into=staged.version)
    console.out.print(
        f"removed: {', '.join(folders)}\n"
        "not removed: the data of the product in the store and the journal",
        highlight=False,
        soft_wrap=True,
    )


def _require_unserved(product: str, state: Path, repository: Path) -> None:
    """Refuse the removal while a server of this state folder serves the product."""
    from tollgate.server.address import find_server

    found = find_server(state)
    if found is None or found.repository_name != str(repository):
        return
    if product in found.products:
        problem = f"is served at {found.grpc_url}: stop that server first"
        raise InputError(product, problem)
