"""The credit product on a real Triton: trained, served, decided, and told why."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import msgspec
import numpy as np
import pandas
import polars as pl
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from threadpoolctl import threadpool_limits
from typer.testing import CliRunner

from converters.credit import MONOTONE, train_credit
from converters.purpose import purpose_of
from tollgate.audit.review.explanation import ExplainedRecord, explain_record
from tollgate.audit.review.notice import notice_text
from tollgate.audit.review.pending import find_pending, pending_table
from tollgate.cli.app import app
from tollgate.errors import JournalError
from tollgate.features.spec.feature_spec import FeatureSpec, wire_inputs
from tollgate.history.request_columns import field_columns, wire_fields
from tollgate.pipeline import publish_and_release
from tollgate.policy.policy_document import read_document
from tollgate.repository.lint.product_rules import check
from tollgate.repository.releases.served_versions import served_spec
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.serving.embedded import serve
from tollgate.simulate.credit import SENSITIVE, simulate_credit
from tollgate_client import Client, Decisions, join

pytestmark = pytest.mark.slow

CHECKED_IN = Path(__file__).parents[3] / "model_repository"
TRAINED, DECIDED = 4_000, 640
NUMBERS = (
    *("amount", "term_months", "income", "debt_payments", "employment_years"),
    *("credit_years", "utilization", "delinquencies", "inquiries"),
    *("debt_burden", "loan_burden"),
)
WORDS = ("purpose", "employment", "home", "savings")


class Served(msgspec.Struct):
    """What was trained, asked and answered; and what was told of some of it."""

    repository: Path
    spec: FeatureSpec
    frame: pl.DataFrame
    answers: Decisions
    reported: dict[str, ExplainedRecord]
    printed: str
    refused: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Train on simulated applications, release, and decide those kept back."""
    folder = tmp_path_factory.mktemp("credit")
    repository, state = folder / "model_repository", folder / "state"
    for one in CHECKED_IN.glob("credit*"):
        shutil.copytree(one, repository / one.name)
    assert [
        str(one) for one in check(RepositorySnapshot(repository), product="credit")
    ] == []
    spec = served_spec(repository, product="credit")
    frame = simulate_credit(rows=TRAINED + DECIDED, seed=4)
    converted = train_credit(
        frame, spec=spec, purpose=purpose_of(repository, "credit"), held_out=DECIDED
    )
    publish_and_release(
        converted, repository=repository, product="credit", reason="a test"
    )
    asked = frame[TRAINED:]
    with serve(repository, products=("credit",), state=state) as server:
        answers = decided(asked, spec, server.grpc_url)
        chosen = [
            asked["transaction_id"][int(at)]
            for decision in ("decline", "review", "approve")
            for at in np.flatnonzero(answers.decision == decision)[:15]
        ]
        reported = {
            one: explanation(one, server.store_url, spec, repository) for one in chosen
        }
        options = ["--product", "credit", "--state", str(state)]
        options += ["--repository", str(repository), "--notice"]
        printed = CliRunner().invoke(app, ["explain", chosen[0], *options])
        assert printed.exit_code == 0, printed.output
        refused = CliRunner().invoke(app, ["explain", chosen[-1], *options])
    return Served(
        repository,
        spec,
        asked,
        answers,
        reported,
        printed.output,
        str(refused.exception),
    )


def decided(asked: pl.DataFrame, spec: FeatureSpec, url: str) -> Decisions:
    """Have applications decided."""
    fields = wire_fields(spec, asked)
    columns: dict[str, list[object]] = dict(
        field_columns(asked, fields, errors=[""] * len(asked))
    )
    columns |= {name: asked[name].to_list() for name in ("transaction_id", "amount")}
    columns["event_time"] = asked["event_time"].dt.epoch("us").to_list()
    with Client(
        url, product="credit", inputs=wire_inputs(spec), fields=fields, timeout_s=30
    ) as client:
        return join(list(client.decide_many(columns)))


def explanation(
    application: str, store_url: str, spec: FeatureSpec, repository: Path
) -> ExplainedRecord:
    """Explain one decision out of the journal's stream."""
    until_s = time.monotonic() + 600
    records = None
    while records is None and time.monotonic() < until_s:
        records = find_pending(store_url, product="credit", wanted=application)
    assert records is not None
    return explain_record(
        pending_table(records, spec=spec, releases=None),
        place="the stream",
        product="credit",
        archived=None,
        repository=repository,
    )


def plain(frame: pl.DataFrame) -> pandas.DataFrame:
    """Make the model's columns as a person would, of the table itself."""
    table = pandas.DataFrame(frame.to_dict(as_series=False))
    burden = table["debt_payments"] / table["income"]
    table = table.assign(
        debt_burden=burden, loan_burden=table["amount"] / table["income"]
    )
    table[list(NUMBERS)] = table[list(NUMBERS)].astype(np.float32)
    return table


def test_served_scores_are_those_of_a_script_over_the_table(served: Served) -> None:
    """Another pipeline, written without the product's files; every row, 1e-5."""
    vocabulary = {one.name: list(one.vocabulary) for one in served.spec.fields}
    encoder = OneHotEncoder(
        categories=[vocabulary[one] for one in WORDS],
        handle_unknown="ignore",
        sparse_output=False,
    )
    columns = ColumnTransformer(
        [
            ("numbers", SimpleImputer(strategy="median"), list(NUMBERS)),
            ("words", encoder, list(WORDS)),
        ]
    )
    signs = [MONOTONE.get(one, 0) for one in NUMBERS]
    signs += [0] * sum(len(vocabulary[one]) for one in WORDS)
    model = HistGradientBoostingClassifier(
        max_iter=150,
        learning_rate=0.06,
        max_depth=4,
        early_stopping=False,
        monotonic_cst=signs,
        random_state=0,
    )
    script = make_pipeline(columns, model)
    whole = simulate_credit(rows=TRAINED + DECIDED, seed=4)
    train = plain(whole[:TRAINED])
    with threadpool_limits(1):
        script.fit(train, train["label"])
        wanted = script.predict_proba(plain(served.frame))[:, 1]
    score = served.answers.score.astype(np.float64)
    assert set(served.answers.error) == {""}
    assert np.abs(score - wanted).max() <= 1e-5
    for cut in (0.1, 0.15, 0.22, 0.3):
        assert ((score >= cut) == (wanted.astype(np.float32) >= cut)).all()


def test_decisions_follow_thresholds_segment_and_rules(served: Served) -> None:
    """By hand, of the scores: large loans are judged more strictly."""
    frame, score = served.frame, served.answers.score.astype(np.float64)
    large = frame["amount"].to_numpy() >= 25_000
    level = (score >= np.where(large, 0.10, 0.15)).astype(int)
    level += score >= np.where(large, 0.22, 0.30)
    level[frame["income"].is_null().to_numpy() & (level == 0)] = 1
    names = np.array(["approve", "review", "decline"])
    assert served.answers.decision.tolist() == names[level].tolist()
    assert {*served.answers.decision.tolist()} == {*names}


def test_a_notice_reports_at_most_four_principal_reasons_in_order(
    served: Served,
) -> None:
    """The codes that raised the score most, with the policy's texts; no score."""
    raw = read_document(served.repository / "credit_decision/1/policy.yaml").raw
    for name, one in served.reported.items():
        if one.decision == "approve":
            with pytest.raises(JournalError, match="is approve: no reasons are owed"):
                notice_text(one, application=name)
            continue
        sums: dict[str, float] = {}
        for part in one.contributions:
            code = raw.contributions[part.feature]
            sums[code] = sums.get(code, 0.0) + part.amount
        ruled = [code.name for code in one.codes if code.name in ("INCOME_NOT_STATED",)]
        largest = sorted((c for c in sums if sums[c] > 0), key=lambda c: -sums[c])
        wanted = [*ruled, *largest][:4]
        assert [reason.code for reason in one.reasons] == wanted
        text = notice_text(one, application=name)
        lines = re.findall(r"^  \d\. (.*)$", text, re.MULTILINE)
        assert lines == [raw.reasons[code] for code in wanted]
        assert not re.search(r"\b(score|threshold|probability)\b", text.lower())
        assert not any(word.replace("_", " ") in text.lower() for word in SENSITIVE)


def test_explain_prints_the_notice_of_one_application(served: Served) -> None:
    """The same text; of an approved one it says that none is owed."""
    name, one = next(iter(served.reported.items()))
    assert served.printed == notice_text(one, application=name) + "\n"
    assert "Your application was declined." in served.printed
    assert "no reasons are owed" in served.refused


def test_scores_keep_to_the_constraints(served: Served) -> None:
    """More debt never helps, more income never harms: asked of the model's graph."""
    from converters.parity.runner import onnx_runner

    version = max((served.repository / "credit_model").glob("[0-9]*"))
    model = onnx_runner((version / "model.onnx").read_bytes())
    table = plain(served.frame[:20])
    vocabulary = {one.name: list(one.vocabulary) for one in served.spec.fields}
    rows = np.zeros((20, len(served.spec.features)), np.float32)
    for column, name in enumerate(served.spec.feature_names):
        if name in NUMBERS:
            rows[:, column] = table[name]
        else:
            words = vocabulary[name]
            rows[:, column] = [
                words.index(w) if w in words else -1 for w in table[name]
            ]
    for name, sign in MONOTONE.items():
        column = served.spec.feature_names.index(name)
        known = table[name][table[name].notna()]
        values = np.linspace(known.min(), known.max(), 100, dtype=np.float32)
        for row in rows:
            swept = np.repeat(row[None], 100, axis=0)
            swept[:, column] = values
            steps = np.diff(model(swept)[:, 1].astype(np.float64)) * sign
            assert steps.min() >= -1e-6, name
