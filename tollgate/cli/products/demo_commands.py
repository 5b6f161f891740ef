"""Simulate data, and run the demo on it: `tollgate simulate` and `demo`."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from tollgate.cli import console
from tollgate.cli.options import Product
from tollgate.cli.repositories import require_repository
from tollgate.errors import InputError
from tollgate.schema import Degraded
from tollgate.suggestions import suggest

if TYPE_CHECKING:
    from tollgate.demo import DecidedApplications
    from tollgate.history import History
    from tollgate.settings import Settings
    from tollgate_client import Decisions


SLA_MS, SLO_MS = 50, 20  # the SLA, and the SLO
_COLD = np.uint32(Degraded.COLD_START)  # a customer's first purchase is no fault
_SAMPLE = 4  # decisions shown of each kind
_BY = "sex"  # attribute of the demo's table; the model card has all of them


def demo(product: Product = None) -> None:
    """
    Simulate, train, publish, serve, and decide 5,000 purchases over gRPC.

    `--product credit`: the same of 2,000 loan applications, with a notice of reasons.
    `--product sensors`: two weeks of a plant's readings, with alarms.
    `--product shop`: items for users of a shop, and what they did in the week after.
    """
    chosen = console.settings(product=product, product_is_known=False)
    known = simulated_product(product)
    require_repository(chosen.repository_path)
    steps = console.StepPrinter()
    if known == SENSORS:
        _demo_sensors(chosen, steps)
        return
    if known == CREDIT:
        _demo_credit(chosen, steps)
        return
    if known == SHOP:
        _demo_shop(chosen, steps)
        return
    from tollgate.demo import decide_purchases

    decided = decide_purchases(
        chosen.repository_path,
        product=chosen.product,
        state=chosen.state_path,
        store_server=chosen.store_server,
        report=steps.report,
        progress_bar=console.progress,
    )
    _print_decisions(decided.history, decided.answers)
    _print_next_steps(*_next_commands())


def _demo_credit(chosen: Settings, steps: console.StepPrinter) -> None:
    from tollgate.audit.review.notice import notice_text
    from tollgate.demo import decide_applications

    decided = decide_applications(
        chosen.repository_path,
        product=chosen.product,
        state=chosen.state_path,
        store_server=chosen.store_server,
        report=steps.report,
    )
    _print_applications(decided)
    console.out.print("\nthe notice to one applicant (tollgate explain ID --notice):\n")
    console.result(notice_text(decided.explanation, application=decided.declined))
    console.out.print()
    copy, card = decided.repository, decided.card
    _print_next_steps(
        ("the model card, with errors by what the model is never shown", str(card)),
        ("serve what was trained", f"tollgate up --product credit --repository {copy}"),
        (
            "meanwhile, elsewhere: decide a file",
            f"TOLLGATE_PRODUCT=credit tollgate score {decided.next_file}",
        ),
    )


def _demo_shop(chosen: Settings, steps: console.StepPrinter) -> None:
    from tollgate.demo import rank_items

    ranked = rank_items(
        product=chosen.product,
        state=chosen.state_path,
        store_server=chosen.store_server,
        report=steps.report,
    )
    first = ranked.answers[0]
    table = Table(title=f"the list of {ranked.user}, and the next one after a purchase")
    for name in ("", "item", "score", "source", "next item"):
        table.add_column(name)
    rows = zip(
        first.items, first.scores, first.sources, ranked.after.items, strict=True
    )
    for place, (item, score, source, after) in enumerate(rows, 1):
        bought = item == ranked.bought
        table.add_row(
            str(place), item + bought * " (bought)", f"{score:.4f}", source, after
        )
    console.out.print(table)
    users = len(ranked.answers)
    console.result(
        f"{ranked.met:,} of {users:,} users met an item of their list in the week "
        f"after; {ranked.met_best:,} met one of the ten best sellers"
    )
    product, copy = chosen.product, ranked.repository
    _print_next_steps(
        (
            "judge the ranking next to simpler ones",
            f"tollgate evaluate {ranked.events_file} --user user_id --item item "
            "--time event_time --action action --category category",
        ),
        (
            "serve what was trained",
            f"tollgate up --product {product} --repository {copy}",
        ),
    )


def _demo_sensors(chosen: Settings, steps: console.StepPrinter) -> None:
    from tollgate.demo import decide_readings
    from tollgate.repository.slo import read_slo

    decided = decide_readings(
        product=chosen.product,
        state=chosen.state_path,
        store_server=chosen.store_server,
        report=steps.report,
        progress_bar=console.progress,
    )
    table = Table(title="faults, and the most severe decision during each")
    for name in ("machine", "fault", "begin", "decision", "reasons"):
        table.add_column(name)
    for one in decided.faults:
        after = f"{one.outcome} after {one.after_s / 60:.0f} min"
        table.add_row(
            one.fault.machine,
            one.fault.kind,
            f"{one.fault.begin:%Y-%m-%d %H:%M}",
            after if one.codes else one.outcome,
            "\n".join(one.codes),
        )
    console.out.print(table)
    found = sum(one.outcome == "alarm" for one in decided.faults)
    console.result(
        f"{found} of {len(decided.faults)} faults raised an alarm; "
        f"{decided.false_alarms} alarms without a fault in "
        f"{decided.machine_days:.0f} machine-days"
    )
    slo = read_slo(decided.repository, product=chosen.product)
    console.out.print(
        _latency(
            decided.answers,
            sla_ms=slo.latency_objective_ms,
            slo_ms=slo.latency_target_ms,
        )
    )
    product, copy = chosen.product, decided.repository
    _print_next_steps(
        (
            "compare the alarms with those of simpler detectors",
            f"tollgate evaluate {decided.readings_file} --product {product} "
            f"--faults {decided.faults_file} --repository {copy}",
        ),
        (
            "serve what was trained",
            f"tollgate up --product {product} --repository {copy}",
        ),
    )


def _next_commands() -> tuple[tuple[str, str], ...]:
    """List example commands to run next, ready to be typed here."""
    from tollgate.demo import NEXT_PURCHASES

    tollgate = os.path.relpath(sys.argv[0])
    return (
        (
            "serve what was trained",
            f"{tollgate} up --repository .tollgate/model_repository",
        ),
        (
            "meanwhile, elsewhere: decide a file",
            f"{tollgate} score .tollgate/demo/{NEXT_PURCHASES}",
        ),
        (
            "see that the features served are those trained on, bit for bit",
            f"{tollgate} features replay .tollgate/demo/history.parquet "
            "--from 2018-08-01 --until 2018-08-03",
        ),
    )


def _print_decisions(history: History, answers: Decisions) -> None:
    """Show a sample of decisions, their quality, and their response times."""
    from tollgate.evaluation import average_precision, roc_auc

    console.out.print(_sample(history, answers))
    console.out.print(_counts(history, answers))
    label = history.label == 1
    usable = ~np.isnan(answers.score)
    console.result(
        f"AUC {roc_auc(label[usable], answers.score[usable]):.3f}   average precision "
        f"{average_precision(label[usable], answers.score[usable]):.3f}   "
        f"({int(label.sum())} frauds among {len(label):,}; "
        f"{int((answers.degraded & ~_COLD != 0).sum())} answers degraded)"
    )
    console.out.print(_latency(answers))


def _print_next_steps(*commands: tuple[str, str]) -> None:
    """Print possible next steps with their commands."""
    console.out.print("next:")
    for what, command in commands:
        text = f"  [dim]{what}[/]\n    {command}"
        console.out.print(text, highlight=False, soft_wrap=True)


def _sample(history: History, answers: Decisions) -> Table:
    from tollgate.schema import DEFAULT_OUTCOMES

    table = Table(title="a sample of the decisions")
    for name in ("purchase", "amount", "score"):
        table.add_column(name, justify="right")
    table.add_column("decision")
    table.add_column("reasons")
    table.add_column("truth")
    colours = ("green", "yellow", "red")
    for decision, colour in zip(DEFAULT_OUTCOMES.words, colours, strict=True):
        chosen = np.flatnonzero(answers.decision == decision)
        for row in chosen[:: max(1, len(chosen) // _SAMPLE)][:_SAMPLE].tolist():
            table.add_row(
                history.transaction_id[row].decode(),
                f"{history.cents[row] / 100:.2f}",
                f"{answers.score[row]:.3f}",
                f"[{colour}]{decision}[/]",
                "\n".join(answers.reason_codes[row]),
                "fraud" if history.label[row] == 1 else "",
            )
    return table


def _counts(history: History, answers: Decisions) -> Table:
    from tollgate.schema import DEFAULT_OUTCOMES

    table = Table(title="what was decided")
    for name in ("decision", "purchases", "of them fraud", "amount"):
        table.add_column(name, justify="left" if name == "decision" else "right")
    for decision in (*DEFAULT_OUTCOMES.words, ""):
        chosen = answers.decision == decision
        if chosen.any():
            table.add_row(
                decision or "error",
                f"{int(chosen.sum()):,}",
                f"{int((history.label[chosen] == 1).sum()):,}",
                f"{history.cents[chosen].sum() / 100:,.2f}",
            )
    return table


def _latency(
    answers: Decisions, *, sla_ms: float = SLA_MS, slo_ms: float = SLO_MS
) -> Table:
    table = Table(title=f"latency; SLA {sla_ms:g} ms, SLO {slo_ms:g} ms")
    table.add_column("")
    columns: list[Any] = [50, 99, 99.9]
    for percent in columns:
        table.add_column(f"p{percent:g}", justify="right")
    table.add_column("within SLA", justify="right")
    table.add_column("within SLO", justify="right")
    latency_ms = answers.latency_s * 1e3
    table.add_row(
        "ms",
        *(f"{np.percentile(latency_ms, percent):.1f}" for percent in columns),
        f"{(latency_ms <= sla_ms).mean():.2%}",
        f"{(latency_ms <= slo_ms).mean():.2%}",
    )
    return table


def _print_applications(decided: DecidedApplications) -> None:
    from tollgate.schema import DEFAULT_OUTCOMES

    applications, answers = decided.applications, decided.answers
    table = Table(title="what was decided")
    for name in ("decision", "applications", "of them not repaid", "amount"):
        table.add_column(name, justify="left" if name == "decision" else "right")
    label, amount = (
        applications["label"].to_numpy() == 1,
        applications["amount"].to_numpy(),
    )
    for decision in DEFAULT_OUTCOMES.words:
        rows = answers.decision == decision
        counts = f"{int(rows.sum()):,}", f"{int(label[rows].sum()):,}"
        table.add_row(decision, *counts, f"{amount[rows].sum():,.0f}")
    console.out.print(table)
    mildest, _, severest = DEFAULT_OUTCOMES.words
    groups = Table(title=f"by {_BY}, which the model is never shown")
    for name in (_BY, "applications", "approved", "declined though repaid"):
        groups.add_column(name, justify="left" if name == _BY else "right")
    for value in applications[_BY].unique().sort():
        rows = (applications[_BY] == value).to_numpy()
        approved = (answers.decision[rows] == mildest).mean()
        wrong = (answers.decision[rows & ~label] == severest).mean()
        groups.add_row(value, f"{int(rows.sum()):,}", f"{approved:.1%}", f"{wrong:.1%}")
    console.out.print(groups)


FRAUD, CREDIT, SENSORS, SHOP = "fraud", "credit", "sensors", "shop"
_DAYS = {FRAUD: 183, SENSORS: 14, SHOP: 56}  # simulated, unless the user says otherwise


def simulate(
    out: Annotated[
        Path, typer.Argument(help="Path of the Parquet file to write.")
    ] = Path(".tollgate/history.parquet"),
    customers: Annotated[int, typer.Option(help="Number of customers.")] = 5_000,
    terminals: Annotated[int, typer.Option(help="Number of terminals.")] = 10_000,
    days: Annotated[
        int | None,
        typer.Option(
            help="Number of days to simulate.",
            show_default="183; of readings 14, of a shop 56",
        ),
    ] = None,
    start: Annotated[
        datetime, typer.Option(formats=["%Y-%m-%d"], help="First day.")
    ] = datetime(2018, 4, 1),
    seed: Annotated[
        int, typer.Option(help="Seed of the random numbers; the same gives the same.")
    ] = 0,
    radius: Annotated[
        float,
        typer.Option(
            help="Maximum distance from a customer to a terminal; the map is 100 wide."
        ),
    ] = 5.0,
    rows: Annotated[
        int,
        typer.Option(help="Number of loan applications; only for --product credit."),
    ] = 20_000,
    machines: Annotated[
        int, typer.Option(help="Number of machines; only for --product sensors.")
    ] = 8,
    interval_s: Annotated[
        int,
        typer.Option(
            "--interval",
            help="Seconds between two readings of a machine; only for --product "
            "sensors.",
        ),
    ] = 60,
    faults: Annotated[
        int,
        typer.Option(
            help="Number of faults, in the second half of the time; only for "
            "--product sensors."
        ),
    ] = 24,
    users: Annotated[
        int, typer.Option(help="Number of users; only for --product shop.")
    ] = 400,
    items: Annotated[
        int, typer.Option(help="Number of items; only for --product shop.")
    ] = 300,
    product: Product = None,
) -> None:
    """
    Simulate purchases of customers at terminals, with three kinds of fraud.

    `--product credit`: applications for a loan, with those that were not repaid.
    `--product sensors`: readings of machines, and a table of their faults.
    `--product shop`: what users view, put into the cart and buy, and a table of items.
    """
    chosen = simulated_product(product)
    _require_parquet(out)
    if chosen == CREDIT:
        _simulate_credit(out, rows=rows, seed=seed)
        return
    days = _DAYS[chosen] if days is None else days
    if chosen == SENSORS:
        _simulate_sensors(
            out,
            machines=machines,
            days=days,
            interval_s=interval_s,
            faults=faults,
            seed=seed,
        )
        return
    if chosen == SHOP:
        _simulate_shop(out, users=users, items=items, days=days, seed=seed)
        return
    from tollgate.simulate import simulate as run
    from tollgate.simulate import write

    with console.progress("simulating") as advance:
        frame = run(
            customers=customers,
            terminals=terminals,
            days=days,
            start=start.date(),
            seed=seed,
            radius=radius,
            progress=advance,
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write(frame, out)
    frauds = int(frame["label"].sum())
    console.say(
        f"{len(frame):,} purchases, {frauds:,} frauds "
        f"({frauds / len(frame):.2%}) → {out}"
    )


def _require_parquet(out: Path) -> None:
    """Refuse a file that no command would read, before the work."""
    if out.is_dir():
        raise InputError(out, "is a folder; name a file in it, such as history.parquet")
    if out.suffix != ".parquet":
        problem = f"is no name of a Parquet file; write {out.name}.parquet"
        raise InputError(out, problem)


def simulated_product(product: str | None) -> str:
    """
    Choose the product to simulate data for.

    Raises:
        InputError: There is no simulation of the product.
    """
    chosen = console.settings(product=product, product_is_known=False).product
    known = (FRAUD, CREDIT, SENSORS, SHOP)
    if chosen not in known:
        problem = f"nothing simulates {chosen!r:.80}; {suggest(chosen, known)}"
        raise InputError("--product", problem)
    return chosen


def _simulate_credit(out: Path, *, rows: int, seed: int) -> None:
    from tollgate.simulate import write
    from tollgate.simulate.credit import simulate_credit

    frame = simulate_credit(rows=rows, seed=seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    write(frame, out)
    unpaid = int(frame["label"].sum())
    share = unpaid / len(frame)
    console.say(
        f"{len(frame):,} applications, {unpaid:,} not repaid ({share:.2%}) → {out}"
    )


def _simulate_sensors(
    out: Path, *, machines: int, days: int, interval_s: int, faults: int, seed: int
) -> None:
    from tollgate.simulate import write
    from tollgate.simulate.plant import faults_frame, simulate_plant

    plant = simulate_plant(
        machines=machines, days=days, interval_s=interval_s, faults=faults, seed=seed
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write(plant.readings, out)
    faults_file = out.with_suffix(".faults.csv")
    faults_frame(plant).write_csv(faults_file)
    console.say(
        f"{len(plant.readings):,} readings of {machines} machines → {out}; "
        f"{len(plant.faults)} faults → {faults_file}"
    )


def _simulate_shop(out: Path, *, users: int, items: int, days: int, seed: int) -> None:
    from tollgate.simulate import write
    from tollgate.simulate.shop import simulate_shop

    shop = simulate_shop(
        users=users, items=items, weeks=max(round(days / 7), 1), seed=seed
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write(shop.events, out)
    items_file = out.with_suffix(".items.parquet")
    write(shop.items, items_file)
    purchases = int((shop.events["action"] == "purchase").sum())
    console.say(
        f"{len(shop.events):,} events of {users:,} users, {purchases:,} of them "
        f"purchases → {out}; {items:,} items → {items_file}"
    )
