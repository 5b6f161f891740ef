"""Create, list and remove products: `tollgate product new|list|remove`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from tollgate.cli import console
from tollgate.cli.options import Json, Repository, TrustPickle
from tollgate.cli.repositories import require_repository
from tollgate.errors import InputError
from tollgate.product.choices import MOST_FIELDS, ProductChoices
from tollgate.product.thresholds import Rates
from tollgate.templating import yaml_number

if TYPE_CHECKING:
    from tollgate.product.creation import CreatedProduct
    from tollgate.product.interactions import InteractionChoices
    from tollgate.product.plan import EntityColumn, Plan
    from tollgate.product.reading_table import ReadingChoices


_ROLES = "Roles of columns"
_RANKING = "Products that rank"
_MODEL = "The model"
_THRESHOLDS = "The thresholds: state either costs or rates"
_AGAIN = " May be repeated."

Name = Annotated[
    str, typer.Argument(help="Name of the product: lowercase letters, digits and _.")
]


def new(
    name: Name,
    table: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Table: Parquet, CSV with a header line, or JSON lines.",
            show_default="required, or --interactions",
        ),
    ] = None,
    interactions: Annotated[
        Path | None,
        typer.Option(
            help="Table of events, each of a user with an item, instead of --from: "
            "create a product that ranks items. Needs --user, --item and --time.",
            show_default="none",
            rich_help_panel=_RANKING,
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            help="Column with the user of each event.", rich_help_panel=_RANKING
        ),
    ] = None,
    item: Annotated[
        str | None,
        typer.Option(
            help="Column with the item of each event.", rich_help_panel=_RANKING
        ),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            help="Column with view, cart or purchase.",
            show_default="none: every event is a view",
            rich_help_panel=_RANKING,
        ),
    ] = None,
    category: Annotated[
        str | None,
        typer.Option(
            help="Column with the category of each event's item.",
            show_default="none",
            rich_help_panel=_RANKING,
        ),
    ] = None,
    label: Annotated[
        str, typer.Option(help="Column with the outcome.", rich_help_panel=_ROLES)
    ] = "",
    no_label: Annotated[
        bool,
        typer.Option(
            "--no-label",
            help="The rows are readings of machines, without outcomes: train a "
            "detector of anomalies, which raises alarms. Needs --time, and one "
            "--entity, the machine, unless there is only one; every other column of "
            "numbers is a sensor.",
            rich_help_panel=_ROLES,
        ),
    ] = False,
    label_delay: Annotated[
        float,
        typer.Option(
            help="Days until the outcome of a row is known; needs --time. "
            "Younger rows are used neither for training nor for "
            "evaluation.",
            min=0,
            metavar="DAYS",
            rich_help_panel=_ROLES,
        ),
    ] = 0.0,
    positive: Annotated[
        str | None,
        typer.Option(
            help="Outcome that the score predicts; rows with high scores are "
            "reviewed or declined.",
            show_default="1, yes, true, or the rarer",
            rich_help_panel=_ROLES,
        ),
    ] = None,
    entity: Annotated[
        list[str] | None,
        typer.Option(
            help="Column with ids to compute windows for; needs --time." + _AGAIN,
            rich_help_panel=_ROLES,
        ),
    ] = None,
    time_: Annotated[
        str | None,
        typer.Option(
            "--time", help="Column with the time of each row.", rich_help_panel=_ROLES
        ),
    ] = None,
    amount: Annotated[
        str | None,
        typer.Option(help="Column with money, in whole cents.", rich_help_panel=_ROLES),
    ] = None,
    id_: Annotated[
        str | None,
        typer.Option(
            "--id", help="Column with an id of each row.", rich_help_panel=_ROLES
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to leave out, such as one known only after the outcome."
            + _AGAIN,
            rich_help_panel=_ROLES,
        ),
    ] = None,
    sensitive: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to leave out; model errors are reported by its values."
            + _AGAIN,
            rich_help_panel=_ROLES,
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to use although it seems to reveal the outcome, or looks like "
            "a label or a counter." + _AGAIN,
            rich_help_panel=_ROLES,
        ),
    ] = None,
    most_fields: Annotated[
        int,
        typer.Option(
            help="Maximum number of columns to use; the most informative are taken.",
            min=1,
            rich_help_panel=_ROLES,
        ),
    ] = MOST_FIELDS,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Model trained on the table's columns, in a format that "
            "`tollgate convert` reads.",
            show_default="train one",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    trust_pickle: TrustPickle = False,
    python: Annotated[
        Path | None,
        typer.Option(
            "--python",
            help="Python of the environment that trained --model, if not this one.",
            show_default="our own",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Columns of the table in the model's training order, if its "
            "file does not name them.",
            metavar="A,B,…",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    words: Annotated[
        Path | None,
        typer.Option(
            help="YAML or JSON file with the words of each column in the "
            "order of their codes, if the model's file does not list "
            "them.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    kind: Annotated[
        Literal["auto", "boosting", "deep-boosting", "logistic"],
        typer.Option(
            help="Kind of model to train; auto takes the one that ranks "
            "outcomes best on parts of the training rows.",
            rich_help_panel=_MODEL,
        ),
    ] = "auto",
    cost_missed: Annotated[
        float | None,
        typer.Option(
            help="Cost of approving a row that has the outcome, in any unit.",
            show_default="none: rates are used",
            rich_help_panel=_THRESHOLDS,
        ),
    ] = None,
    cost_review: Annotated[
        float | None,
        typer.Option(
            help="Cost of one review, in the same unit.",
            show_default="none: rates are used",
            rich_help_panel=_THRESHOLDS,
        ),
    ] = None,
    cost_wrong_decline: Annotated[
        float | None,
        typer.Option(
            help="Cost of declining a row without the outcome, in the same unit.",
            show_default="none: no score declines",
            rich_help_panel=_THRESHOLDS,
        ),
    ] = None,
    review_rate: Annotated[
        float | None,
        typer.Option(
            help="Share of the rows to review, 0 to 1.",
            show_default="the share that has the outcome",
            rich_help_panel=_THRESHOLDS,
        ),
    ] = None,
    decline_rate: Annotated[
        float | None,
        typer.Option(
            help="Maximum share of the rows to decline, 0 to 1.",
            show_default="0: no score declines",
            rich_help_panel=_THRESHOLDS,
        ),
    ] = None,
    false_alarms: Annotated[
        float | None,
        typer.Option(
            help="With --no-label: false alarms of a machine in a day that thresholds "
            "are chosen for.",
            show_default="1 in 30 days, or in 10,000 readings if these take less",
            rich_help_panel=_THRESHOLDS,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not prompt.")] = False,
    repository: Repository = None,
) -> None:
    """
    Create a product from a table: files, features, model, release; serve it as a test.
    """
    from tollgate.product.creation import create_product
    from tollgate.product.model import ModelFile
    from tollgate.product.placement import require_free
    from tollgate.product.plan import make_plan
    from tollgate.product.splitting import DAY_US
    from tollgate.product.thresholds import build_goal

    folder = console.settings(repository=repository).repository_path
    require_free(folder, name)
    columns_of_events = {
        "--user": user,
        "--item": item,
        "--action": action,
        "--category": category,
    }
    if interactions is not None:
        from tollgate.product.interactions import InteractionChoices

        unused = {
            "--from": table,
            "--label": label,
            "--no-label": no_label,
            "--label-delay": label_delay,
            "--positive": positive,
            "--entity": entity,
            "--amount": amount,
            "--drop": drop,
            "--sensitive": sensitive,
            "--keep": keep,
            "--model": model,
            "--cost-missed": cost_missed,
            "--cost-review": cost_review,
            "--cost-wrong-decline": cost_wrong_decline,
            "--review-rate": review_rate,
            "--decline-rate": decline_rate,
            "--false-alarms": false_alarms,
        }
        _new_ranking(
            InteractionChoices(
                product=name,
                table=interactions,
                user=user or "",
                item=item or "",
                time=time_ or "",
                action=action,
                category=category,
                id=id_,
            ),
            repository=folder,
            unused=[option for option, value in unused.items() if value],
        )
        return
    for option, column in columns_of_events.items():
        if column is not None:
            raise InputError(option, "goes with --interactions")
    if table is None:
        raise InputError("--from", "name the table, or events with --interactions")
    if entity and not time_:
        raise InputError(
            "--entity", "windows need times: name their column with --time"
        )
    if label_delay and not time_:
        raise InputError("--label-delay", "needs times: name their column with --time")
    if no_label:
        from tollgate.product.reading_table import ReadingChoices

        unused = {
            "--label": label,
            "--label-delay": label_delay,
            "--positive": positive,
            "--amount": amount,
            "--sensitive": sensitive,
            "--model": model,
            "--cost-missed": cost_missed,
            "--cost-review": cost_review,
            "--cost-wrong-decline": cost_wrong_decline,
        }
        _new_readings(
            ReadingChoices(
                product=name,
                table=table,
                machine=_only_entity(entity, time_),
                keep=tuple(keep or ()),
                time=time_ or "",
                id=id_,
                drop=tuple(drop or ()),
                watch_share=review_rate,
                alarm_share=decline_rate,
                false_alarms=false_alarms,
            ),
            repository=folder,
            unused=[option for option, value in unused.items() if value],
        )
        return
    if false_alarms is not None:
        raise InputError("--false-alarms", "goes with --no-label")
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
    ask = not yes and is_terminal()
    choices = prompt_missing(choices, ask=ask)
    steps = console.StepPrinter()

    def show(plan: Plan) -> None:
        print_plan(plan)
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
    print_result(plan, made, repository=folder)


def _only_entity(entity: list[str] | None, time_: str | None) -> str | None:
    """Return the column of the machines; None for one machine. Require a time."""
    if not time_:
        raise InputError("--no-label", "readings have times: name their column, --time")
    if entity and len(entity) > 1:
        problem = f"{', '.join(entity)}: readings are of machines, in one column"
        raise InputError("--entity", problem)
    return entity[0] if entity else None


def _new_readings(
    choices: ReadingChoices, *, repository: Path, unused: Sequence[str]
) -> None:
    """Create a product of readings, and print what it does."""
    from tollgate.product.readings import create_readings

    if unused:
        problem = f"goes with a label, and not with --no-label: {', '.join(unused)}"
        raise InputError(unused[0], problem)
    steps = console.StepPrinter()
    made = create_readings(
        choices,
        repository=repository,
        report=steps.report,
        progress_bar=console.progress,
    )
    rule, days = made.rule, made.machine_days
    text = (
        f"created {choices.product}: a score of {rule.watch:g} is watched, one of "
        f"{rule.alarm:g} alarms; {made.alarms} alarms in "
    )
    if days >= 1:
        text += f"{days:.1f} machine-days that it was not trained on, "
        text += f"{made.alarms / days:.2f} a day"
    else:
        text += f"{24 * days:.2g} machine-hours that it was not trained on"
    console.result(text)
    console.out.print(
        f"serve it: tollgate up --product {choices.product}; judge it, once faults are "
        f"known: tollgate evaluate READINGS --product {choices.product} "
        "--faults FILE",
        highlight=False,
        soft_wrap=True,
    )


def _new_ranking(
    choices: InteractionChoices, *, repository: Path, unused: Sequence[str]
) -> None:
    """Create a product that ranks, and print how well it does."""
    from tollgate.product.interactions import create_interactions

    if unused:
        problem = f"does not go with --interactions: {', '.join(unused)}"
        raise InputError(unused[0], problem)
    for option, column in (
        ("--user", choices.user),
        ("--item", choices.item),
        ("--time", choices.time),
    ):
        if not column:
            raise InputError(option, "name the column: --interactions needs it")
    steps = console.StepPrinter()
    made = create_interactions(choices, repository=repository, report=steps.report)
    console.result(
        f"created {choices.product}: NDCG@10 {made.ndcg:.4f} on the newest fifth of "
        f"the users' events, which its settings were chosen by; popular items "
        f"{made.popular_ndcg:.4f}"
    )
    console.out.print(
        f"serve it: tollgate up --product {choices.product}; load the events: tollgate "
        f"materialize {choices.table} --product {choices.product}; then: python "
        f"{repository / choices.product / 'ask.py'}",
        highlight=False,
        soft_wrap=True,
    )


def list_products(repository: Repository = None, as_json: Json = False) -> None:
    """List the products of the repository, with the active release of each."""
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
    table = Table("product", "release", "versions", box=None, pad_edge=False)
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
    from tollgate.product.placement import displace, folders_of
    from tollgate.repository.versions import staging

    chosen = console.settings(repository=repository, state=state)
    folder = chosen.repository_path
    require_repository(folder)
    folders = folders_of(folder, name)
    _require_unserved(name, chosen.state_path, folder)
    if not yes:
        if not is_terminal():
            raise InputError(
                "product remove", "removal is permanent: confirm it with --yes"
            )
        if not confirm_removal(name, folder, folders=folders):
            raise typer.Exit(1)
    with staging(folder) as staged:
        staged.version.mkdir()
        displace(folder, folders, into=staged.version)
    console.result(
        f"removed: {', '.join(folders)}\n"
        "not removed: the data of the product in the store and the journal"
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


def prompt_missing(choices: ProductChoices, *, ask: bool) -> ProductChoices:
    """
    Prompt for the open choices: label, entities, time, amount, columns to leave out.

    Args:
        choices: Choices that flags state; an empty label is open.
        ask: True if a person is there to respond.

    Raises:
        InputError: The label is open, and no person is there.
    """
    if not ask:
        if not choices.label:
            raise InputError("--label", "name the column with the outcome")
        return choices
    from tollgate.product.table_reading import read_table

    columns = read_table(choices.table).frame.columns
    typer.echo(f"{choices.table.name} has {', '.join(columns)}", err=True)
    changes: dict[str, object] = {}
    if not choices.label:
        changes["label"] = _one("Which column is the outcome", columns, needed=True)
    if choices.time is None:
        changes["time"] = _one("Which holds the time of each row", columns)
    if not choices.entities and (choices.time or changes.get("time")):
        changes["entities"] = _several("Compute windows for the ids in", columns)
    if choices.amount is None:
        changes["amount"] = _one("Which is money, in whole cents", columns)
    if not choices.drop:
        changes["drop"] = _several("Leave out (not known before the outcome)", columns)
    if not choices.sensitive:
        question = "Leave out and report errors by (sex, age, …)"
        changes["sensitive"] = _several(question, columns)
    return msgspec.structs.replace(choices, **changes)


def is_terminal() -> bool:
    """Return whether a person can read questions and answer them."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm_removal(product: str, repository: Path, *, folders: Sequence[str]) -> bool:
    """Ask for confirmation before a permanent removal."""
    shown = ", ".join(folders)
    return typer.confirm(
        f"Remove {product} from {repository} ({shown})? This is permanent.", err=True
    )


def _one(question: str, columns: Sequence[str], *, needed: bool = False) -> str | None:
    while True:
        hint = "" if needed else " (Enter: none)"
        found = str(
            typer.prompt(f"{question}?{hint}", default="", show_default=False, err=True)
        )
        if found in columns or (not found and not needed):
            return found or None
        typer.echo(f"{found!r} is none of them", err=True)


def _several(question: str, columns: Sequence[str]) -> tuple[str, ...]:
    while True:
        prompt = f"{question}? (names, comma between; Enter: none)"
        text = str(typer.prompt(prompt, default="", show_default=False, err=True))
        found = tuple(one.strip() for one in text.split(",") if one.strip())
        wrong = [one for one in found if one not in columns]
        if not wrong:
            return found
        typer.echo(f"{wrong[0]!r} is none of them", err=True)


_SHOWN = 40  # columns that are shown of a wide table
_NAMED = 8  # columns that are named for one reason
_SAMPLE = 6
# Personal attributes that laws on equal treatment name; only a hint.
_SENSITIVE = (
    *("sex", "gender", "age", "race", "ethnicity", "religion", "nationality"),
    *("marital", "marital_status", "marriage", "disability", "pregnant"),
)


def print_plan(plan: Plan) -> None:
    """Show each column's role, and the left-out columns with the reason."""
    label, choices = plan.label, plan.choices
    others = ", ".join(label.others[:5])
    console.result(
        f"{choices.table.name}: {len(plan.frame):,} rows, {len(plan.frame.columns)} "
        f"columns; the score is the probability that {choices.label} is "
        f"{label.positive} ({label.share:.2%} of the rows; else {others})"
    )
    table = Table(box=None, pad_edge=False)
    for title in ("column", "field", "values", "missing", "note"):
        table.add_column(title, overflow="fold")
    for one in plan.fields[:_SHOWN]:
        column = one.column
        what = f"{len(column.words)} words"
        if column.kind == "number":
            what = f"{yaml_number(column.low)} … {yaml_number(column.high)}"
            what += f", {column.decimals} decimals" if column.decimals else ""
            what += ", exact" if column.decimals is None else ""
        name = "" if one.name == column.source else one.name
        missing = f"{column.missing:,}" if column.missing else ""
        cells = (column.source, name, what, missing, "; ".join(column.notes))
        table.add_row(*map(escape, cells))
    if plan.fields:
        console.out.print(table)
    if len(plan.fields) > _SHOWN:
        console.result(f"… and {len(plan.fields) - _SHOWN} more")
    for entity in plan.entities:
        console.result(f"windows  {entity.source}: {_windows_text(plan, entity)}")
    reasons: dict[str, list[str]] = {}
    for left in plan.excluded:
        reasons.setdefault(left.reason, []).append(left.source)
    for reason, names in reasons.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        console.result(f"left out  {', '.join(names[:_NAMED])}{more}: {reason}")
    for note in (*plan.notes, *_hints(plan)):
        console.result(f"note  {note}")


def _windows_text(plan: Plan, entity: EntityColumn) -> str:
    """Describe the windows of an entity."""
    text = f"{', '.join(entity.windows)}: count"
    if plan.choices.amount:
        text += f"; sum, mean of {plan.choices.amount}"
    if entity.numbers:
        text += f"; if they help: {plan.numbers_text(entity)}"
    return text


def _hints(plan: Plan) -> list[str]:
    named = [
        one.column.source
        for one in plan.fields
        if one.column.source.lower() in _SENSITIVE
    ]
    if not named:
        return []
    return [
        f"{', '.join(named)} may be unlawful reasons for a decision; --sensitive "
        "excludes a column and reports the model's errors by it"
    ]


def print_result(plan: Plan, created: CreatedProduct, *, repository: Path) -> None:
    """Show decisions on held-out rows, the product's parts, and the next commands."""
    from tollgate.product.files import ASK_FILE, criterion_text

    product, trial = plan.choices.product, created.trial
    table = Table(title=f"some of {len(trial.rows)} held-out rows, as served")
    for title in ("score", "decision", "reasons", plan.choices.label):
        table.add_column(title, overflow="fold")
    step = max(1, len(trial.rows) // _SAMPLE)
    for row in range(0, len(trial.rows), step):
        truth = plan.label.positive if trial.label[row] else "other"
        table.add_row(
            f"{trial.answers.score[row]:.4f}",
            str(trial.answers.decision[row]),
            "\n".join(trial.answers.reason_codes[row]),
            escape(truth),
        )
    console.out.print(table)
    thresholds = created.thresholds
    declined = "no score declines"
    if thresholds.decline is not None:
        declined = f"decline from {yaml_number(thresholds.decline)}: "
        declined += f"{thresholds.declined:,} rows"
    rows = f"{thresholds.rows:,} held-out rows"
    if created.seen:
        rows = f"{thresholds.rows:,} rows that the model may have been trained on"
    console.result(
        f"AUC {created.auc:.4f}   average precision {created.average_precision:.4f}   "
        f"on {rows}; review from {yaml_number(thresholds.review)}: "
        f"{thresholds.reviewed:,} rows, {declined}; served scores are at most "
        f"{trial.largest_difference:.1e} from the source's, on {trial.compared:,} rows "
        f"as {plan.choices.table.name} has them"
    )
    text = criterion_text(thresholds)
    if thresholds.goal == Rates():
        text += (
            " --review-rate and --decline-rate, or --cost-missed and --cost-review, "
            "choose others."
        )
    console.result(f"thresholds  {text}")
    console.result(
        f"\n{product} is in {_short(repository)}; all of it is yours to edit:"
    )
    for name, what in _files(product):
        console.result(
            f"  {name:{max(len(one) for one, _ in _files(product))}}  {what}"
        )
    console.result("\nthe call, once it is served:\n")
    call = (repository / product / ASK_FILE).read_text("utf-8")
    console.result(call)
    console.result("next:")
    for what, command in _next(product, repository):
        console.result(f"  {what}\n    {command}")


def _files(product: str) -> tuple[tuple[str, str], ...]:
    from tollgate.product.files import ASK_FILE, SCRIPT_FILE, step_names

    features, model, decision = step_names(product)
    return (
        (f"{features}/1/features.yaml", "features of the model (docs/features.md)"),
        (f"{decision}/1/policy.yaml", "thresholds, rules, reasons (docs/policy.md)"),
        (f"{product}/slo.yaml", "latency objectives (docs/budget.md)"),
        (
            f"{product}/{SCRIPT_FILE}",
            "trains a model and publishes it as the next version",
        ),
        (f"{product}/{ASK_FILE}", "the client call below"),
        (f"{model}/1/card.md", "model card"),
    )


def _next(product: str, repository: Path) -> tuple[tuple[str, str], ...]:
    from tollgate.product.files import ASK_FILE, SCRIPT_FILE

    tollgate = os.path.relpath(sys.argv[0])
    if tollgate.startswith(".."):
        tollgate = "tollgate"
    here = _short(repository)
    where = "" if here == "model_repository" else f" --repository {here}"
    return (
        ("serve it", f"{tollgate} up --product {product}{where}"),
        ("call it from another terminal", f"python {here}/{product}/{ASK_FILE}"),
        ("train again", f"python {here}/{product}/{SCRIPT_FILE}"),
        ("remove it", f"{tollgate} product remove {product}{where}"),
    )


def _short(repository: Path) -> str:
    try:
        return str(repository.relative_to(Path.cwd()))
    except ValueError:
        return str(repository)
