"""Exact reasons of reviews and declines, sealed next to them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest

from tests.support.audit.decided_records import decided, opened
from tests.support.audit.random_records import REPOSITORY, made
from tollgate.audit.chain.verification import verify
from tollgate.audit.releases.record_rows import read_table
from tollgate.audit.review.reason_text import ReleaseExplainer, default_texts
from tollgate.audit.worker.reasons import NOT_EXPLAINED, ReasonSealer, sealed_reasons
from tollgate.audit.worker.retention import retain

Open = Callable[..., Any]


def seal_reasons(journal: Any, repository: Path | None = REPOSITORY) -> list[Any]:
    """Seal the reasons of a journal's decisions."""
    return ReasonSealer(
        journal.chain, journal.releases, repository=repository
    ).seal_new()


def test_contributions_add_up_to_the_score() -> None:
    """Expected margin and contributions give the answers of onnxruntime."""
    records = decided(200)
    release = opened()
    explainer = ReleaseExplainer(release)
    amounts = explainer.contributions(records.features)
    margin = explainer.expected + amounts.sum(axis=1)
    path = REPOSITORY / "fraud_model" / "1" / "model.onnx"
    session = onnxruntime.InferenceSession(str(path))
    (answers,) = session.run(["probabilities"], {"features": records.features})
    np.testing.assert_allclose(1 / (1 + np.exp(-margin)), answers[:, 1], atol=1e-6)


def test_reviews_and_declines_have_reasons(open_journal: Open) -> None:
    """Codes of the answer, then the largest contributions; at most four, none twice."""
    journal = open_journal()
    records = decided(120)
    journal.sealer.seal([records])
    (link,) = seal_reasons(journal)
    assert link.kind == "reasons"
    table = read_table(journal.folder, link)
    explained = np.flatnonzero(records.decision > 0).tolist()
    assert sorted(set(table["sequence"].to_list())) == explained
    assert link.facts == {"decisions": str(len(explained))}
    release = opened()
    policy, names = release.policy, release.spec.feature_names
    amounts = ReleaseExplainer(release).contributions(records.features[explained])
    for row, amount in zip(explained, amounts, strict=True):
        own = table.filter(pl.col("sequence") == row)
        assert own["place"].to_list() == list(range(1, len(own) + 1))
        assert len(own) <= 4
        assert own["text"].n_unique() == len(own) == own["code"].n_unique()
        # By hand: the answer's, then each feature's code by its amount.
        wanted = records.reason_codes[row].decode().split("|")
        for at in sorted(range(15), key=lambda at: -amount[at]):
            code = policy.contributions.get(names[at])
            if amount[at] > 0 and code is not None and code not in wanted:
                wanted.append(code)
        assert own["code"].to_list() == wanted[:4]
        assert own["text"].to_list() == [policy.reasons[code] for code in wanted[:4]]


def test_reasons_are_sealed_once_and_reproducible(open_journal: Open) -> None:
    """Equal records have equal reasons, sealed once each, and verified."""
    journal = open_journal()
    records = decided(60)
    journal.sealer.seal([records])
    first = read_table(journal.folder, seal_reasons(journal)[0])
    assert seal_reasons(journal) == []
    journal.sealer.seal([decided(60, writer="fedcba9876543210")])
    (second,) = seal_reasons(journal)
    again = read_table(journal.folder, second)
    assert again.drop("writer").equals(first.drop("writer"))
    assert verify(journal.folder, marks=journal.marks()).findings == []


def test_journal_explains_without_the_repository(
    open_journal: Open, tmp_path: Path
) -> None:
    """The release's archive contains the data that explains its model."""
    copy = tmp_path / "model_repository"
    shutil.copytree(REPOSITORY, copy)
    journal = open_journal(repository=copy)
    journal.sealer.seal([decided(40)])
    shutil.rmtree(copy)
    (link,) = seal_reasons(journal, None)
    assert NOT_EXPLAINED not in link.facts
    assert link.rows > 0


def test_missing_explanation_has_a_cause(open_journal: Open) -> None:
    """An unknown release, and decisions of another model."""
    journal = open_journal()
    journal.sealer.seal([made(10, release="old")])
    journal.sealer.seal([made(10, first=10)])
    journal.sealer.seal([decided(10, first=20)])
    unknown, foreign, valid = seal_reasons(journal)
    assert "old: release old: is neither in the journal" in unknown.facts[NOT_EXPLAINED]
    records = made(10, first=10)
    number = int((records.decision > 0).sum())
    problem = f"fraud-1: {number} decisions are not its model's"
    assert foreign.facts == {"decisions": "0", NOT_EXPLAINED: problem}
    assert valid.rows > 0
    assert verify(journal.folder, marks=journal.marks()).findings == []


def test_reasons_of_one_record(open_journal: Open) -> None:
    """The sealed reasons of a record, or the cause why there are none."""
    journal = open_journal()
    records = decided(30)
    journal.sealer.seal([records])
    (segment,) = journal.chain.alive("segment")
    row = int(np.flatnonzero(records.decision > 0)[0])
    approved = int(np.flatnonzero(records.decision == 0)[0])

    def sealed(sequence: int) -> Any:
        return sealed_reasons(
            *(journal.folder, journal.chain.links, segment),
            writer=records.writer,
            sequence=sequence,
        )

    assert sealed(row) == ([], "")
    seal_reasons(journal)
    reasons, why = sealed(row)
    assert not why
    assert reasons[0].code == records.reason_codes[row].decode().split("|")[0]
    assert reasons[0].contribution is None
    assert reasons[-1].contribution > 0
    assert sealed(approved) == ([], "its decision needs no reasons")


def test_changed_reason_is_found(open_journal: Open) -> None:
    """Reasons are verified row by row, like decisions."""
    journal = open_journal()
    journal.sealer.seal([decided(30)])
    (link,) = seal_reasons(journal)
    path = journal.folder / link.table
    table = pl.read_parquet(path)
    table.with_columns(table["text"].scatter(2, "You look odd.")).write_parquet(path)
    findings = verify(journal.folder, marks=journal.marks()).findings
    assert f"{link.table}: row 2: was changed" in [str(one) for one in findings]


def test_retention_removes_reasons_with_decisions(open_journal: Open) -> None:
    """Reasons describe a purchase, so they are removed with it."""
    journal = open_journal()
    journal.sealer.seal([decided(30)])
    (link,) = seal_reasons(journal)
    retain(journal.chain, before_us=2**52)
    assert journal.chain.alive("reasons") == []
    assert not (journal.folder / link.table).exists()
    assert verify(journal.folder, marks=journal.marks()).findings == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("amount", "Raised the score: amount of the request."),
        (
            "customer_nb_tx_7d",
            "Raised the score: number of purchases, of the customer, 7d.",
        ),
    ],
)
def test_features_have_default_texts(spec: Any, name: str, words: str) -> None:
    """For a policy that maps no feature."""
    texts = default_texts(spec)
    assert set(texts) == set(spec.feature_names)
    assert texts[name] == words
