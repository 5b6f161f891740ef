"""Finding one decision, and its page."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from tests.support.audit.decided_records import decided
from tests.support.audit.random_records import REPOSITORY, SPEC_HASH, made
from tollgate.audit.chain import merkle
from tollgate.audit.review.lookup import find_record
from tollgate.audit.review.record_text import (
    DEGRADED_TEXTS,
    decision_page,
    field_text,
    place_among,
)
from tollgate.audit.worker.late_checks import flag_new
from tollgate.audit.worker.reasons import ReasonSealer
from tollgate.errors import InputError
from tollgate.features.fields import hash_words
from tollgate.features.windows.entity_entries import MISSING
from tollgate.repository.models.artifact_file import Distribution
from tollgate.schema import Degraded

Open = Callable[..., Any]


def journal_with_one(open_journal: Open) -> tuple[Any, Any]:
    """Seal decisions, one of them suspicious; return the journal and its records."""
    journal = open_journal()
    records = made(60)
    records.decision[7] = 2
    records.features[7, 0] = 1_299
    records.reason_codes[7] = b"SCORE_DECLINE|TERMINAL_UNDER_ATTACK"
    policy = (REPOSITORY / "fraud_decision" / "1" / "policy.yaml").read_text()
    rules = [one["name"] for one in yaml.safe_load(policy)["rules"]]
    records.rules[7] = 1 << rules.index("terminal_under_attack")
    records.degraded[7] = Degraded.LAST_KNOWN_VECTOR | Degraded.FIELD_MISSING
    records.age_ms[7] = 4_200
    journal.sealer.seal([records])
    journal.sealer.seal([made(10, first=60)])
    flag_new(journal.chain, journal.releases)
    return journal, records


def text_of(page: str) -> str:
    """Return the text of a page."""
    body = page.partition("<body>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_decision_is_found_by_transaction_or_number(open_journal: Open) -> None:
    """The customer's id is optional for a transaction id."""
    journal, records = journal_with_one(open_journal)
    transaction = records.transaction_id[7].decode()
    customer = records.entity_id[0][7].decode()
    by_all = find_record(journal.folder, transaction, subjects=journal.subjects)
    by_one = find_record(
        journal.folder, transaction, subjects=journal.subjects, customer=customer
    )
    by_number = find_record(journal.folder, f"{records.writer}:7", subjects=None)
    assert by_all.values["sequence"] == 7
    assert by_one.values == by_all.values == by_number.values


def test_decision_of_an_erased_person_is_found_by_number_only(
    open_journal: Open,
) -> None:
    """Nothing in the record identifies the person."""
    journal, records = journal_with_one(open_journal)
    customer = records.entity_id[0][7]
    journal.subjects.erase("customer", customer, day="2026-01-01")
    transaction = records.transaction_id[7].decode()
    for one in (None, customer.decode()):
        with pytest.raises(InputError, match="its person was erased"):
            find_record(
                journal.folder, transaction, subjects=journal.subjects, customer=one
            )
    found = find_record(journal.folder, f"{records.writer}:7", subjects=None)
    assert customer.decode() not in decision_page(found, None)


def test_evidence_connects_record_and_head(open_journal: Open) -> None:
    """The path leads to the link's root; that of a changed record does not."""
    journal, records = journal_with_one(open_journal)
    name = f"{records.writer}:7"
    found = find_record(journal.folder, name, subjects=None, marks=journal.marks())
    proof = found.evidence
    assert proof.problems == []
    assert merkle.climb(proof.digest, proof.path).hex() == found.link.root
    assert proof.head == journal.marks()[-1]
    assert proof.anchored == proof.later + 1
    path = journal.folder / found.link.table
    table = pl.read_parquet(path)
    table.with_columns(table["decision"].scatter(7, "approve")).write_parquet(path)
    found = find_record(journal.folder, name, subjects=None)
    assert "not as it was sealed" in found.evidence.problems[0]
    assert "not as it was sealed" in text_of(decision_page(found, None))


def test_page_shows_everything_about_a_decision(open_journal: Open) -> None:
    """Reasons and bits in words, rules with owners, features, times, flags, proof."""
    journal, records = journal_with_one(open_journal)
    found = find_record(journal.folder, f"{records.writer}:7", subjects=None)
    text = text_of(decision_page(found, journal.releases.get("fraud-1")))
    cents, taken_us = int(records.cents[7]), int(records.features_us[7])
    for words in (
        f"Amount {cents / 100:,.2f}",
        "SCORE_DECLINE The purchase looks very much like known fraud.",
        "terminal_under_attack TERMINAL_UNDER_ATTACK owner: fraud-operations",
        DEGRADED_TEXTS[Degraded.LAST_KNOWN_VECTOR],
        DEGRADED_TEXTS[Degraded.FIELD_MISSING],
        "the oldest value used was 4.2 s old",
        "customer_nb_tx_7d",
        "number of purchases, of the customer, 7d",
        "outside amount of the request",
        f"Feature step {taken_us / 1000:,.2f} ms",
        "amount 1299 is not within 0 … 861.2",
        "The record is as it was sealed.",
        found.link.root,
        "channel not sent",
    ):
        assert words in text, words


def test_page_shows_features_that_raised_the_score(open_journal: Open) -> None:
    """In the sealed words; before sealing, that they are not computed yet."""
    journal = open_journal()
    records = decided(30)
    journal.sealer.seal([records])
    row = int(np.flatnonzero(records.decision == 2)[0])
    name = f"{records.writer}:{row}"
    text = text_of(
        decision_page(find_record(journal.folder, name, subjects=None), None)
    )
    assert "Features that raised the score Not computed yet." in text
    ReasonSealer(journal.chain, journal.releases, repository=REPOSITORY).seal_new()
    found = find_record(journal.folder, name, subjects=None)
    text = text_of(decision_page(found, None))
    raised = [one for one in found.reasons if one.contribution is not None]
    assert raised
    for one in raised:
        assert f"{one.text} {one.contribution:+.3f} {one.feature}" in text


def test_page_loads_nothing_and_escapes(open_journal: Open) -> None:
    """No script, no address; markup in a code is shown as text."""
    journal = open_journal(repository=None)
    records = made(1)
    records.reason_codes[0] = b"<script>alert(1)</script>"
    journal.sealer.seal([records])
    page = decision_page(
        find_record(journal.folder, f"{records.writer}:0", subjects=None), None
    )
    assert "default-src 'none'" in html.unescape(page)
    assert "<script" not in page
    assert not re.search(r"(src|href)=|url\(|https?:", page)
    assert "<script>alert(1)</script>" in text_of(page)


def test_record_without_consent_has_a_page(open_journal: Open) -> None:
    """It shows the decision and lists the parts that are not stored."""
    journal = open_journal(repository=None, consent="keep")
    records = made(1)
    journal.sealer.seal([records])
    found = find_record(journal.folder, f"{records.writer}:0", subjects=None)
    assert "Not stored: there was no consent" in text_of(decision_page(found, None))


def test_every_degraded_bit_has_a_text() -> None:
    """Also a bit that is added later."""
    assert set(DEGRADED_TEXTS) == set(Degraded)


def test_fields_are_shown_as_sent(spec: Any) -> None:
    """A number with its decimals, a category by its word, a missing one as not sent."""
    import msgspec

    from tollgate.features.spec.spec_definition import Field

    declared = msgspec.structs.replace(
        spec,
        fields=(
            Field("weight", "number", decimals=2, low=0, high=999, vocabulary=()),
            Field("kind", "category", decimals=0, low=0, high=0, vocabulary=("a", "b")),
        ),
    )
    word, other = hash_words([b"b", b"c"]).tolist()
    assert field_text("weight", 123, declared) == "1.23"
    assert field_text("kind", word, declared) == "b"
    assert "not in the vocabulary" in field_text("kind", other, declared)
    assert field_text("kind", MISSING, declared) == "not sent"
    assert declared.spec_hash == SPEC_HASH
    assert field_text("new", 5, declared).startswith("5 (")


def test_position_in_training_follows_quantiles() -> None:
    """Between the quantiles around a value; in the middle of equal ones; outside."""
    known = Distribution(quantiles=(0.0, 0.0, 1.0, 10.0))
    levels = (0.0, 0.5, 0.9, 1.0)
    places = [place_among(value, known, levels) for value in (-1, 0, 0.5, 1, 10, 11)]
    assert places == pytest.approx([-1, 0.45, 0.7, 0.75, 0.95, 2])
    assert np.isnan(place_among(1, Distribution(), levels))
