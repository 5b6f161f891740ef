"""Evaluate models and load labels: `tollgate evaluate`, `labels load|accuracy`."""

from __future__ import annotations

import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from tollgate.cli import console, running_server
from tollgate.cli.decisions.journal_commands import (
    Anchor,
    Folder,
    Keys,
    default_folder,
    default_keys,
    journal_chain,
    opened_chain,
    seconds,
)
from tollgate.cli.operations.store_commands import STORE_DEADLINE_S
from tollgate.cli.options import (
    ActionColumn,
    Arrival,
    ItemColumn,
    Json,
    Product,
    Repository,
    State,
    StoreUrl,
    TimeColumn,
)
from tollgate.cli.repositories import require_entities, require_repository
from tollgate.errors import InputError

if TYPE_CHECKING:
    from converters.ranking.evaluation import JudgedRanking
    from tollgate.audit.chain.chain import Chain
    from tollgate.audit.releases.labelled_decisions import ReleaseAccuracy
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.policy import Policy
    from tollgate.store.store_events import Labels


_MEASURES = ("roc_auc", "average_precision", "card_precision")
_RANKING_MEASURES = {
    "recall": "recall@200",
    "ndcg": "NDCG@10",
    "coverage": "coverage",
    "diversity": "diversity",
    "novelty": "novelty",
}


def evaluate(
    history: Annotated[
        Path,
        typer.Argument(
            help="Purchases with labels, readings, or users' events with items: "
            "Parquet, CSV or JSON lines."
        ),
    ],
    faults: Annotated[
        Path | None,
        typer.Option(
            help="Judge the alarms of a product of readings: table of the known "
            "faults, with the machine's column, begin and end; without rows, every "
            "alarm counts as false.",
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            help="Judge the ranking of items: column with the ids of users; with "
            "--item and --time."
        ),
    ] = None,
    item: ItemColumn = None,
    event_time: TimeColumn = None,
    action: ActionColumn = None,
    category: Annotated[
        str | None, typer.Option(help="Column with the category of the item.")
    ] = None,
    train_from: Annotated[
        datetime, typer.Option(formats=["%Y-%m-%d"], help="First training day.")
    ] = datetime(2018, 7, 25),
    train_days: Annotated[
        int, typer.Option(help="Days of the history to train on.")
    ] = 7,
    delay_days: Annotated[
        int,
        typer.Option(help="Days until labels are known, between training and test."),
    ] = 7,
    test_days: Annotated[
        int, typer.Option(help="Days to decide, after those of training.")
    ] = 7,
    expect: Annotated[
        str | None,
        typer.Option(
            help="AUC, average precision and card precision@100 to reach, as "
            "a,b,c; exit status 1 if one is missed."
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest accepted shortfall from --expect.")
    ] = 0.002,
    arrival: Arrival = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            help="features.yaml to evaluate, not yet in the repository; it may have "
            "`hop: auto`.",
            show_default="the released one",
        ),
    ] = None,
    product: Product = None,
    repository: Repository = None,
    as_json: Json = False,
) -> None:
    """
    Train on some weeks of a history, serve the model, and judge its decisions.

    With `--faults`: judge the alarms of the released detector of readings. With
    `--user`, `--item` and `--time`: train a ranking without the newest fifth of each
    user's events, and judge it and its rivals on these; with `--product`, its policy
    too.
    """
    if user is not None or item is not None or event_time is not None:
        given = {
            **{"--faults": faults, "--expect": expect},
            **{"--arrival": arrival, "--spec": spec},
        }
        for option, value in given.items():
            if value is not None:
                raise InputError(option, "does not go with --user, --item and --time")
        if user is None or item is None or event_time is None:
            problem = "are needed together to judge a ranking"
            raise InputError("--user, --item, --time", problem)
        _evaluate_interactions(
            history,
            columns=_Columns(user, item, event_time, action, category),
            product=product,
            repository=repository,
            as_json=as_json,
        )
        return
    for option, value in {"--action": action, "--category": category}.items():
        if value is not None:
            raise InputError(option, "goes with --user, --item and --time")
    if faults is not None:
        given = {"--expect": expect, "--arrival": arrival, "--spec": spec}
        for option, value in given.items():
            if value is not None:
                problem = "goes with labels: --faults judges the alarms of a release"
                raise InputError(option, problem)
        chosen = console.settings(repository=repository, product=product)
        require_repository(chosen.repository_path)
        console.require_products(chosen, chosen.products)
        _evaluate_readings(
            history,
            faults,
            repository=chosen.repository_path,
            product=chosen.product,
            as_json=as_json,
        )
        return
    from tollgate.cli.models.feature_commands import resolve_features
    from tollgate.features.hop_choice import write_with_hops
    from tollgate.history import read_history
    from tollgate.pipeline import evaluate_history
    from tollgate.repository.releases.served_versions import served_spec

    wanted = _expected(expect)
    chosen = console.settings(repository=repository, product=product)
    require_repository(chosen.repository_path)
    console.require_products(chosen, chosen.products)
    with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
        new_spec = None
        if spec is None:
            loaded = served_spec(chosen.repository_path, product=chosen.product)
            _require_labels(loaded)
            require_entities(loaded)
            purchases = read_history(history, spec=loaded, arrival=arrival)
        else:
            loaded, purchases, hops = resolve_features(spec, history, arrival=arrival)
            require_entities(loaded)
            if loaded.product != chosen.product:
                problem = f"is {loaded.product!r}; {chosen.product!r} is evaluated"
                raise InputError(spec, problem, where="product")
            new_spec = write_with_hops(spec, Path(folder), hops)
        found = evaluate_history(
            purchases,
            spec=loaded,
            repository=chosen.repository_path,
            train_from=train_from.date(),
            train_days=train_days,
            delay_days=delay_days,
            test_days=test_days,
            store_server=chosen.store_server,
            report=console.say,
            progress_bar=console.progress,
            new_spec=new_spec,
        )
    result, degraded = found.measures, found.degraded
    measured = [float(getattr(result, name)) for name in _MEASURES]
    if degraded:
        console.say(
            f"{degraded:,} answers were degraded: not the model alone is judged"
        )
    missed = [
        name
        for name, value, goal in zip(_MEASURES, measured, wanted, strict=True)
        if goal is not None and value < goal - tolerance
    ]
    if as_json:
        report = {
            "release": found.release.name,
            "rows": result.rows,
            "frauds": result.frauds,
            "served": dict(zip(_MEASURES, measured, strict=True)),
            "expected": dict(zip(_MEASURES, wanted, strict=True)),
            "degraded": degraded,
            "missed": missed,
        }
        console.print_json(report)
    else:
        table = _table(measured, wanted, rows=result.rows, frauds=result.frauds)
        console.out.print(table)
    if missed:
        console.say(f"missed: {', '.join(missed)}")
        raise typer.Exit(1)


def _require_labels(spec: FeatureSpec) -> None:
    """Refuse a product of readings, which has no labels to train on."""
    if spec.rows_noun == "readings":
        problem = (
            f"{spec.product} is a product of readings, without labels: name the table "
            "of the known faults with --faults; one without rows counts false alarms"
        )
        raise InputError("--faults", problem)


def _evaluate_readings(
    readings: Path, faults: Path, *, repository: Path, product: str, as_json: bool
) -> None:
    """Judge the alarms of a product of readings, and print the comparison."""
    from tollgate.product.reading_quality import judge_readings

    found = judge_readings(readings, faults, repository=repository, product=product)
    if as_json:
        console.print_json(msgspec.to_builtins(found))
        return
    table = Table(
        title=f"{found.release}: {found.readings:,} readings of {found.machines} "
        f"machines, {found.faults} faults"
    )
    for name in ("detector", "threshold", "found", "false alarms", "delay", "NAB"):
        table.add_column(name, justify="left" if name == "detector" else "right")
    for one in found.comparisons:
        for kind, quality in (("its own", one.quality), ("same recall", one.at_recall)):
            if quality is None or (kind != "its own" and quality is one.quality):
                continue
            table.add_row(
                one.detector,
                kind,
                f"{quality.detected} of {quality.windows}",
                f"{quality.false_alarms} "
                f"({quality.false_alarms_per_sensor_day:.3g} a sensor-day)",
                f"{quality.delay_s / 60:.0f} min" if quality.detected else "",
                f"{quality.nab:.1f}" if quality.windows else "",
            )
    console.out.print(table)
    for note in found.notes:
        console.say(note)


class _Columns(msgspec.Struct, frozen=True):
    """Columns of a table of users' events with items."""

    user: str
    item: str
    time: str
    action: str | None
    category: str | None


def _evaluate_interactions(
    path: Path,
    *,
    columns: _Columns,
    product: str | None,
    repository: str | None,
    as_json: bool,
) -> None:
    """Judge a ranking and its rivals, and print the measures and the differences."""
    from converters.ranking.evaluation import evaluate_interactions
    from converters.ranking.interactions import read_interactions

    policy, fields, history = _released_ranking(product, repository)
    found = evaluate_interactions(
        read_interactions(
            path,
            user=columns.user,
            item=columns.item,
            time=columns.time,
            action=columns.action,
            category=columns.category,
        ),
        policy=policy,
        fields=fields,
        history=history,
        report=console.say,
    )
    if as_json:
        console.print_json(found)
        return
    console.result(
        f"{found.source}: {found.events:,} events, {found.users:,} users, "
        f"{found.items:,} items; judged: {found.judged:,} users"
    )
    console.out.print(_ranking_table("ranking", found.rankings, differences=False))
    console.out.print(
        _ranking_table("difference", found.rankings[1:], differences=True)
    )
    for one in found.rankings:
        console.result(f"{one.name}: {one.settings}")
    for note in found.notes:
        console.say(note)


def _released_ranking(
    product: str | None, repository: str | None
) -> tuple[Policy | None, tuple[str, ...], int]:
    """Return policy, fields and history of a product; without one, the defaults."""
    from converters.ranking.training import HISTORY
    from tollgate.repository.releases.served_versions import served_policy, served_spec

    if product is None:
        return None, (), HISTORY
    chosen = console.settings(repository=repository, product=product)
    require_repository(chosen.repository_path)
    console.require_products(chosen, chosen.products)
    policy = served_policy(chosen.repository_path, product=chosen.product)
    spec = served_spec(chosen.repository_path, product=chosen.product)
    if policy.ranking is None or spec.history is None:
        raise InputError("--product", f"{chosen.product} ranks no items")
    return policy, tuple(one.name for one in spec.fields), spec.history.most


def _ranking_table(
    title: str, rankings: tuple[JudgedRanking, ...], *, differences: bool
) -> Table:
    table = console.number_table(title, *_RANKING_MEASURES.values())
    for one in rankings:
        found = one.differences if differences else one.measures
        sign = "+" if differences else ""
        cells = [
            f"{found[name].value:{sign}.3f}\n"
            f"{found[name].low:{sign}.3f}…\n{found[name].high:{sign}.3f}"
            for name in _RANKING_MEASURES
        ]
        table.add_row(one.name, *cells)
    return table


def _expected(text: str | None) -> list[float | None]:
    if text is None:
        return [None] * len(_MEASURES)
    try:
        values: list[float | None] = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != len(_MEASURES):
        raise InputError(
            "--expect", f"{text!r} is not three numbers like 0.86,0.64,0.27"
        )
    return values


def _table(
    measured: list[float], wanted: list[float | None], *, rows: int, frauds: int
) -> Table:
    table = Table(title=f"served scores, {rows:,} purchases, {frauds:,} frauds")
    table.add_column("measure")
    table.add_column("served", justify="right")
    table.add_column("expected", justify="right")
    names = ("AUC ROC", "average precision", "card precision@100")
    for name, value, goal in zip(names, measured, wanted, strict=True):
        table.add_row(name, f"{value:.4f}", "" if goal is None else f"{goal:.3f}")
    return table


LegitimateAfter = Annotated[
    str | None,
    typer.Option(
        help="Age, such as 30d, from which an unlabelled decision counts "
        "as legitimate.",
        show_default="only labelled decisions are judged",
    ),
]


def load(
    file: Annotated[Path, typer.Argument(help="Labels: Parquet, CSV or JSON lines.")],
    journal_only: Annotated[
        bool,
        typer.Option(
            help="Write labels to the journal only, if a feed brings them to the store."
        ),
    ] = False,
    legitimate_after: LegitimateAfter = None,
    folder: Folder = None,
    keys: Keys = None,
    anchor: Anchor = None,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Load labels into the store and the journal; then judge each release."""
    from tollgate.audit.chain.links import link_paths
    from tollgate.audit.worker.label_journal import read_labels
    from tollgate.repository.releases.served_versions import served_spec

    chosen = console.settings(
        product=product, repository=repository, state=state, store_url=store_url
    )
    spec = served_spec(chosen.repository_path, product=chosen.product)
    labels = read_labels(file, spec=spec)
    stored = None
    if spec.entities and not journal_only:
        stored = _into_store(labels, spec=spec, url=running_server.store_url(chosen))
        if not as_json:
            counts = "applied {applied:,}, had already {duplicate:,}, too late {late:,}"
            text = f"store: {counts.format_map(stored)}"
            console.result(text)
    place = folder or default_folder(chosen)
    if not link_paths(place):
        if not spec.entities:
            raise InputError(place, "holds no journal, and the store wants no labels")
        console.say(f"no journal in {place}: labels are in the store alone")
        if as_json:
            console.print_json({"store": stored, "journal": None, "releases": []})
        return
    chain = journal_chain(place, anchor, product=chosen.product)
    rows = _into_journal(
        labels, spec=spec, chain=chain, keys=keys or default_keys(place)
    )
    accuracies = _accuracies(chain, legitimate_after)
    if as_json:
        journal = {"labels": len(labels), "new": rows}
        report = {"store": stored, "journal": journal, "releases": accuracies}
        console.print_json(report)
        return
    text = f"{rows:,} of {len(labels):,} labels are new and of people it knows"
    console.result(f"journal: {text}")
    _print(accuracies)


def accuracy(
    legitimate_after: LegitimateAfter = None,
    folder: Folder = None,
    anchor: Anchor = None,
    product: Product = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """Print precision, recall and AUC of every release on its labelled decisions."""
    chosen = console.settings(
        product_is_known=folder is None, product=product, state=state
    )
    place = folder or default_folder(chosen)
    chain = opened_chain(place, anchor, product=chosen.product)
    accuracies = _accuracies(chain, legitimate_after)
    if as_json:
        console.print_json(accuracies)
    else:
        _print(accuracies)


def _into_store(labels: Labels, *, spec: FeatureSpec, url: str) -> dict[str, int]:
    from tollgate.audit.worker.label_journal import labels_for_store
    from tollgate.store.event_writer import EventWriter
    from tollgate.store.redis.cluster_store import open_store

    store = open_store(url, deadline_s=STORE_DEADLINE_S)
    stored = EventWriter(spec, store).labels(labels_for_store(labels))
    store.close()
    return {
        "applied": int(stored.applied.sum()),
        "duplicate": int(stored.duplicate.sum()),
        "late": int(stored.too_late.sum()),
    }


def _into_journal(
    labels: Labels, *, spec: FeatureSpec, chain: Chain, keys: Path
) -> int:
    from tollgate.audit.worker.label_journal import seal_labels
    from tollgate.audit.worker.pseudonyms import Subjects

    subjects = Subjects(keys)
    link = seal_labels(chain, labels, spec=spec, subjects=subjects)
    subjects.close()
    return link.rows if link else 0


def _accuracies(chain: Chain, legitimate_after: str | None) -> list[ReleaseAccuracy]:
    """Judge every release on its labelled decisions."""
    from tollgate.audit.releases.labelled_decisions import accuracy_by_release as judge

    before_us = None
    if legitimate_after is not None:
        age_s = seconds(legitimate_after, flag="--legitimate-after")
        before_us = time.time_ns() // 1000 - int(age_s * 1e6)
    return judge(chain, legitimate_before_us=before_us)


def _print(accuracies: list[ReleaseAccuracy]) -> None:
    heads = ("release", "decisions", "labelled", "frauds", "precision", "recall")
    # Releases of one product rarely differ in their words.
    severest = " or ".join(dict.fromkeys(one.outcomes[-1] for one in accuracies))
    more = (
        *(f"precision, {severest}", f"recall, {severest}"),
        *("AUC", "average precision"),
    )
    table = console.number_table(*heads, *more)
    for one in accuracies:
        table.add_row(*_cells(one))
    console.out.print(table)


def _cells(one: ReleaseAccuracy) -> list[str]:
    shares = (
        *(one.flagged, one.caught, one.declined, one.caught_declined),
        *(one.roc_auc, one.average_precision),
    )
    return [
        one.release,
        *(f"{number:,}" for number in (one.decisions, one.labelled, one.frauds)),
        *("" if share != share else f"{share:.3f}" for share in shares),
    ]
