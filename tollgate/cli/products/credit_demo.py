"""
Run the demo of loan applications with a notice of reasons: `demo --product credit`.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tollgate.cli import console
from tollgate.cli.products import demo_report
from tollgate.errors import JournalError

if TYPE_CHECKING:
    import polars as pl

    from tollgate.audit.review.explanation import ExplainedRecord
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.server.serving.embedded import Embedded
    from tollgate.settings import Settings
    from tollgate_client import Decisions

_ROWS, _HELD_OUT, _DECIDED = 20_000, 5_000, 2_000
_IN_FLIGHT = 8
_TIMEOUT_S = 10.0
_BY = "sex"  # attribute of the demo's table; the model card has all of them
NEXT_FILE = "applications.csv"


def demo_credit(chosen: Settings) -> None:
    """Simulate, train, publish, serve, decide 2,000 applications, write one notice."""
    from tollgate.cli import pipeline
    from tollgate.repository.product_models import read_product
    from tollgate.simulate.credit import SENSITIVE, simulate_credit

    source = chosen.repository_path
    pipeline.require_repository(source)
    folder = chosen.state_path / "credit"
    folder.mkdir(parents=True, exist_ok=True)
    with demo_report.timed("simulated applications") as note:
        frame = simulate_credit(rows=_ROWS)
        applications = frame[_ROWS - _HELD_OUT :][:_DECIDED]
        applications[:20].drop("label", *SENSITIVE).write_csv(folder / NEXT_FILE)
        share = int(frame["label"].sum()) / len(frame)
        note(f"{len(frame):,}, {share:.1%} not repaid")
    copy = folder / "model_repository"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    spec = pipeline.served_spec(copy, product=chosen.product)
    with demo_report.timed("trained, converted, proven, published, released") as note:
        note(_publish(frame, spec=spec, repository=copy))
    step = read_product(copy, chosen.product).model_step
    card = max((copy / step).glob("*/card.html"), key=lambda one: int(one.parent.name))
    _serve_and_decide(applications, spec=spec, repository=copy, chosen=chosen)
    demo_report.next_steps(
        ("the model card, with errors by what the model is never shown", str(card)),
        ("serve what was trained", f"tollgate up --product credit --repository {copy}"),
        (
            "meanwhile, elsewhere: decide a file",
            f"TOLLGATE_PRODUCT=credit tollgate score {folder / NEXT_FILE}",
        ),
    )


def _publish(frame: pl.DataFrame, *, spec: FeatureSpec, repository: Path) -> str:
    from converters.sources.libraries import require_library
    from tollgate.cli import pipeline

    require_library("sklearn")
    from converters.credit import train_credit
    from converters.purpose import purpose_of

    converted = train_credit(
        frame,
        spec=spec,
        purpose=purpose_of(repository, spec.product),
        held_out=_HELD_OUT,
    )
    release = pipeline.publish_and_release(
        converted,
        repository=repository,
        product=spec.product,
        reason="demo: trained on simulated applications",
    )
    quality = converted.quality()
    auc = 0.0 if quality is None else quality.overall.auc or 0.0
    return f"{release.name}, AUC {auc:.3f} on {_HELD_OUT:,} held-out applications"


def _serve_and_decide(
    applications: pl.DataFrame, *, spec: FeatureSpec, repository: Path, chosen: Settings
) -> None:
    from tollgate.server.serving.embedded import serve

    started = time.monotonic()
    products = (spec.product,)
    with serve(
        repository,
        products=products,
        state=chosen.state_path,
        store_server=chosen.store_server,
    ) as server:
        release = server.serving[spec.product].release
        ready = f"Triton and Redis, release {release}, grpc {server.grpc_url}"
        demo_report.step("server up", ready, time.monotonic() - started)
        with demo_report.timed(
            f"decided {len(applications):,} held-out applications"
        ) as note:
            answers = _decide(applications, spec=spec, server=server)
            note(f"over gRPC, one a request, {_IN_FLIGHT} in flight")
        declined = np.flatnonzero(answers.decision == "decline")
        found = _explain(
            applications["transaction_id"][int(declined[0])],
            server=server,
            repository=repository,
            spec=spec,
        )
    _print(applications, answers)
    _print_notice(found, applications["transaction_id"][int(declined[0])])


def _decide(
    applications: pl.DataFrame, *, spec: FeatureSpec, server: Embedded
) -> Decisions:
    from tollgate.cli.decisions.score_command import field_columns, wire_fields
    from tollgate.features.spec.request_inputs import wire_inputs
    from tollgate_client import Client, join

    fields = wire_fields(spec, applications)
    columns: dict[str, Any] = dict(
        field_columns(applications, fields, errors=[""] * len(applications))
    )
    for name in spec.columns:
        columns[name] = applications[name].to_list()
    columns["event_time"] = applications["event_time"].dt.epoch("us").to_list()
    with Client(
        server.grpc_url,
        product=spec.product,
        inputs=wire_inputs(spec),
        fields=fields,
        timeout_s=_TIMEOUT_S,
    ) as client:
        return join(
            list(client.decide_many(columns, batch_rows=1, in_flight=_IN_FLIGHT))
        )


def _explain(
    application: str, *, server: Embedded, repository: Path, spec: FeatureSpec
) -> ExplainedRecord:
    """Explain one decision that is still pending in the journal's stream."""
    from tollgate.audit.review.explanation import explain_record
    from tollgate.audit.review.pending import find_pending, pending_table

    records = None
    until_s = time.monotonic() + _TIMEOUT_S
    while records is None and time.monotonic() < until_s:
        records = find_pending(
            server.store_url, product=spec.product, wanted=application
        )
    if records is None:
        raise JournalError(application, f"not in the stream after {_TIMEOUT_S:g} s")
    return explain_record(
        pending_table(records, spec=spec, releases=None),
        place="the stream",
        product=spec.product,
        archived=None,
        repository=repository,
    )


def _print(applications: pl.DataFrame, answers: Decisions) -> None:
    from rich.table import Table

    table = Table(title="what was decided")
    for name in ("decision", "applications", "of them not repaid", "amount"):
        table.add_column(name, justify="left" if name == "decision" else "right")
    label, amount = (
        applications["label"].to_numpy() == 1,
        applications["amount"].to_numpy(),
    )
    for decision in ("approve", "review", "decline"):
        rows = answers.decision == decision
        counts = f"{int(rows.sum()):,}", f"{int(label[rows].sum()):,}"
        table.add_row(decision, *counts, f"{amount[rows].sum():,.0f}")
    console.out.print(table)
    groups = Table(title=f"by {_BY}, which the model is never shown")
    for name in (_BY, "applications", "approved", "declined though repaid"):
        groups.add_column(name, justify="left" if name == _BY else "right")
    for value in applications[_BY].unique().sort():
        rows = (applications[_BY] == value).to_numpy()
        approved = (answers.decision[rows] == "approve").mean()
        wrong = (answers.decision[rows & ~label] == "decline").mean()
        groups.add_row(value, f"{int(rows.sum()):,}", f"{approved:.1%}", f"{wrong:.1%}")
    console.out.print(groups)


def _print_notice(found: ExplainedRecord, application: str) -> None:
    from tollgate.audit.review.notice import notice_text

    console.out.print("\nthe notice to one applicant (tollgate explain ID --notice):\n")
    text = notice_text(found, application=application)
    console.out.print(text, highlight=False, markup=False, soft_wrap=True)
    console.out.print()
