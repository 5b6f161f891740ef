"""Print the plan and the result of `product new` for a person."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from tollgate.cli import console
from tollgate.product.files import ASK_FILE, SCRIPT_FILE, criterion_text, step_names
from tollgate.product.plan import Plan
from tollgate.templating import yaml_number

if TYPE_CHECKING:
    from tollgate.product.creation import CreatedProduct

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
    _line(
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
        _line(f"… and {len(plan.fields) - _SHOWN} more")
    reasons: dict[str, list[str]] = {}
    for left in plan.excluded:
        reasons.setdefault(left.reason, []).append(left.source)
    for reason, names in reasons.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        _line(f"left out  {', '.join(names[:_NAMED])}{more}: {reason}")
    for note in (*plan.notes, *_hints(plan)):
        _line(f"note  {note}")


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
    """
    Show decisions on held-out rows, the parts of the product, and the next commands.
    """
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
    _line(
        f"AUC {created.auc:.4f}   average precision {created.average_precision:.4f}   "
        f"on {rows}; review from {yaml_number(thresholds.review)}: "
        f"{thresholds.reviewed:,} rows, {declined}; served scores are at most "
        f"{trial.largest_difference:.1e} from the source's, on {trial.compared:,} rows "
        f"as {plan.choices.table.name} has them"
    )
    _line(f"thresholds  {criterion_text(thresholds)}")
    _line(f"\n{product} is in {_short(repository)}; all of it is yours to edit:")
    for name, what in _files(product):
        _line(f"  {name:{max(len(one) for one, _ in _files(product))}}  {what}")
    _line("\nthe call, once it is served:\n")
    call = (repository / product / ASK_FILE).read_text("utf-8")
    console.out.print(call, highlight=False, markup=False, soft_wrap=True)
    _line("next:")
    for what, command in _next(product, repository):
        _line(f"  {what}\n    {command}")


def _files(product: str) -> tuple[tuple[str, str], ...]:
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


def _line(text: str) -> None:
    console.out.print(text, highlight=False, markup=False, soft_wrap=True)
