"""A served product with outcomes of its own names them wherever a decision is text."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import redis
from typer.testing import CliRunner

from tests.support.policy.own_outcomes import (
    NAMED,
    OWN,
    renamed_codes,
    with_own_outcomes,
)
from tests.support.products import loans_product
from tollgate import Engine
from tollgate.cli.app import app
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.monitor.journal_monitor import MonitorOptions, ProductMonitor
from tollgate.monitor.monitor_metrics import samples_of
from tollgate.monitor.monitor_page import monitor_page
from tollgate.repository.lint.product_rules import check
from tollgate.repository.slo import Form
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.serving.embedded import Embedded, serve
from tollgate_client import Client, DecisionClient, Fallback, Options

pytestmark = pytest.mark.slow

FORMS: tuple[Form, ...] = ("ensemble", "fused")
NOW_US = time.time_ns() // 1000
PATIENCE_S = 600.0
ROWS = 64
Made = Callable[[str], Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make the loans product with a policy."""

    def make_(policy: str) -> Path:
        folder = tmp_path_factory.mktemp("loans") / "model_repository"
        table = loans_product.table(2_000)
        loans_product.make_product(folder, table, policy=policy)
        return folder

    return make_


@pytest.fixture(scope="module")
def repository(make: Made) -> Path:
    """The product with normal, watch and alarm."""
    folder = make(with_own_outcomes(loans_product.POLICY))
    found = check(RepositorySnapshot(folder), product=loans_product.NAME)
    assert [str(one) for one in found] == []
    return folder


@pytest.fixture(scope="module")
def expected(make: Made) -> dict[str, list[str]]:
    """The answers of the same product with the default words, renamed."""
    with Engine.open(make(loans_product.POLICY), product="loans") as engine:
        answers = engine.decide(applications(), dry_run=True)
    assert set(answers["decision"]) == NAMED.keys()
    return {
        "decision": [NAMED[word] for word in answers["decision"]],
        "reason_codes": [renamed_codes(one) for one in answers["reason_codes"]],
    }


@pytest.fixture(scope="module")
def servers(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Form, Embedded]]:
    """The product in both forms."""
    with ExitStack() as stack:
        yield {
            form: stack.enter_context(
                serve(
                    repository,
                    products=(loans_product.NAME,),
                    state=tmp_path_factory.mktemp(form),
                    form=form,
                )
            )
            for form in FORMS
        }


@pytest.fixture(scope="module")
def journal(
    servers: dict[Form, Embedded],
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The sealed decisions of the ensemble."""
    folder = tmp_path_factory.mktemp("sealed") / "journal"
    decide(servers["ensemble"])
    wait_journaled(servers["ensemble"])
    url = servers["ensemble"].store_url
    where = ("--folder", str(folder), "--journal-url", url)
    run("journal", "run", *of(repository), *where, "--until-idle")
    return folder


def applications() -> dict[str, list[Any]]:
    """Generate applications as columns."""
    drawn = loans_product.table(ROWS, seed=7)
    return {
        "transaction_id": [f"a{row}" for row in range(ROWS)],
        "event_time": [NOW_US + row for row in range(ROWS)],
        **{field: drawn[field].to_list() for field in loans_product.FIELDS},
    }


def decide(server: Embedded) -> dict[str, list[str]]:
    """Decide them all; return decisions and joined codes."""
    with Client(
        server.grpc_url,
        product=loans_product.NAME,
        inputs=loans_product.INPUTS,
        fields=loans_product.FIELDS,
        timeout_s=20,
    ) as client:
        parts = list(client.decide_many(applications()))
    return {
        "decision": [word for one in parts for word in one.decision.tolist()],
        "reason_codes": ["|".join(own) for one in parts for own in one.reason_codes],
    }


def wait_journaled(server: Embedded) -> None:
    """Wait until all rows are in the stream."""
    until_s = time.monotonic() + PATIENCE_S
    with redis.Redis.from_url(server.store_url) as store:
        while True:
            entries = [one for _, one in store.xrange(stream_key(loans_product.NAME))]
            chunks = [decode_chunk(one[CHUNK_FIELD]) for one in entries if one]
            if sum(map(len, chunks)) >= ROWS:
                return
            assert time.monotonic() < until_s
            time.sleep(0.05)


def run(*arguments: str) -> str:
    """Run a command that must succeed; return its output in one line."""
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return " ".join(done.output.split())


def of(repository: Path) -> tuple[str, ...]:
    """Return the options that name the product."""
    return ("--product", loans_product.NAME, "--repository", str(repository))


@pytest.mark.parametrize("form", FORMS)
def test_a_served_form_answers_in_the_products_words(
    servers: dict[Form, Embedded], expected: dict[str, list[str]], form: Form
) -> None:
    """Decision and codes of every row, and of a stored decision."""
    assert decide(servers[form]) == expected
    wait_journaled(servers[form])
    assert decide(servers[form]) == expected


def test_the_local_engine_answers_in_the_products_words(
    repository: Path, expected: dict[str, list[str]]
) -> None:
    """As the served forms do."""
    with Engine.open(repository, product=loans_product.NAME) as engine:
        answers = engine.decide(applications(), dry_run=True)
    assert {name: answers[name].tolist() for name in expected} == expected


@pytest.mark.parametrize("form", FORMS)
def test_metrics_count_by_the_products_words(
    servers: dict[Form, Embedded], expected: dict[str, list[str]], form: Form
) -> None:
    """Each word that was decided, and no other."""
    decide(servers[form])  # again, if another test did before: counted once
    wanted = {word: float(n) for word, n in Counter(expected["decision"]).items()}
    until_s = time.monotonic() + PATIENCE_S
    while (found := decisions_counted(servers[form])) != wanted:
        assert time.monotonic() < until_s, found
        time.sleep(0.1)


def decisions_counted(server: Embedded) -> Mapping[str, float]:
    """Read the decisions by outcome from the metrics of the server."""
    with urllib.request.urlopen(server.metrics_url) as page:
        text = page.read().decode()
    found: Counter[str] = Counter()
    for labels, number in re.findall(
        r"^tollgate_decisions_total{(.*)} (\S+)$", text, re.MULTILINE
    ):
        (word,) = re.findall(r'outcome="(\w+)"', labels)
        found[word] += float(number)
    return found


def test_the_journal_has_the_products_words(
    journal: Path, repository: Path, expected: dict[str, list[str]]
) -> None:
    """Sealed, replayed, listed in the facts of the segment and explained."""
    tables = [pl.read_parquet(one) for one in journal.glob("*.segment.parquet")]
    table = pl.concat(tables)
    assert Counter(table["decision"]) == Counter(expected["decision"])
    replayed = run("journal", "replay", str(journal), *of(repository))
    assert f"loans-1: {ROWS} of {ROWS} the same" in replayed
    (reasons,) = [pl.read_parquet(one) for one in journal.glob("*.reasons.parquet")]
    severe = [word for word in expected["decision"] if word != OWN[0]]
    assert reasons["sequence"].n_unique() == len(severe)


@pytest.mark.parametrize("word", OWN)
def test_explain_names_the_decision(
    journal: Path, repository: Path, expected: dict[str, list[str]], word: str
) -> None:
    """With the words of both thresholds; only a severer decision has reasons."""
    row = expected["decision"].index(word)
    where = (*of(repository), "--folder", str(journal))
    text = run("explain", f"a{row}", *where)
    assert text.startswith(f"{word}, ")
    if "WITHDRAWN" not in expected["reason_codes"][row]:
        assert "watch from 0.4, alarm from 0.7" in text
    found = json.loads(run("explain", f"a{row}", *where, "--json"))
    assert found["outcomes"] == [*OWN]
    assert bool(found["reasons"]) == (word != OWN[0])
    page = journal.parent / f"{word}.html"
    run("journal", "export", f"a{row}", "--folder", str(journal), "--out", str(page))
    tone = ("mild", "middle", "severe")[OWN.index(word)]
    assert f'<header class="{tone}">' in page.read_text()
    assert f"<h1>{word.capitalize()}</h1>" in page.read_text()


def test_a_pending_decision_is_explained_in_words(
    servers: dict[Form, Embedded],
    repository: Path,
    expected: dict[str, list[str]],
    tmp_path: Path,
) -> None:
    """Before anything is sealed, the words come from the repository."""
    decide(servers["fused"])
    wait_journaled(servers["fused"])
    url = ("--journal-url", servers["fused"].store_url)
    where = (*of(repository), "--folder", str(tmp_path / "none"), *url)
    text = run("explain", "a3", *where)
    assert text.startswith(f"{expected['decision'][3]}, ")


def test_simulate_reads_and_writes_the_products_words(
    journal: Path, repository: Path, tmp_path: Path
) -> None:
    """A stricter policy moves rows from watch to alarm; recorded words are read."""
    new = tmp_path / "policy.yaml"
    text = with_own_outcomes(loans_product.POLICY)
    assert "alarm: 0.7" in text
    new.write_text(text.replace("alarm: 0.7", "alarm: 0.5"))
    spec = repository / "loans_features/1/features.yaml"
    where = ("--on", str(journal), "--spec", str(spec))
    found = json.loads(run("policy", "simulate", str(new), *where, "--json"))
    table = pl.concat(
        [pl.read_parquet(one) for one in journal.glob("*.segment.parquet")]
    )
    watched = table.filter(pl.col("decision") == "watch")
    moved = int((watched["score"] >= 0.5).sum())
    assert found["outcomes"] == [*OWN]
    assert moved > 0
    assert found["matrix"][1][2] == moved
    assert "before ╲ after" in run("policy", "simulate", str(new), *where)
    # The recorded words are those of the recorded releases, not of the new policy.
    new.write_text(loans_product.POLICY.replace("decline: 0.7", "decline: 0.5"))
    renamed = json.loads(run("policy", "simulate", str(new), *where, "--json"))
    assert renamed["matrix"] == found["matrix"]
    assert renamed["outcomes"] == [*NAMED]


def test_the_monitor_shows_the_products_words(
    journal: Path, expected: dict[str, list[str]]
) -> None:
    """In its metrics and on its page."""
    options = MonitorOptions(window=ROWS)
    found = ProductMonitor(journal, repository=None, options=options)
    found.look(NOW_US)
    found.require_read()
    counts = Counter(expected["decision"])
    page = re.sub(r"<[^>]+>", " ", monitor_page([found]))
    for word in OWN:
        assert re.search(rf"\b{word}\s+{counts[word]}\b", page)
    shares = {
        labels["decision"]: value
        for name, labels, value in samples_of(found)
        if name == "decision_share"
    }
    assert shares == {word: counts[word] / ROWS for word in OWN}


def test_a_client_gets_the_products_words(
    servers: dict[Form, Embedded], expected: dict[str, list[str]]
) -> None:
    """Its rule knows them; a rule with other words decides itself, and says why."""
    options = Options(
        product=loans_product.NAME,
        inputs=loans_product.INPUTS,
        fields=loans_product.FIELDS,
        deadline_s=20.0,
    )
    row = {name: column[5] for name, column in applications().items()}
    url = [servers["ensemble"].grpc_url]
    own = Fallback(otherwise="watch", outcomes=OWN)
    with DecisionClient(url, fallback=own, options=options) as client:
        answer = client.decide(row, dry_run=True)
        word = expected["decision"][5]
        assert (answer.decision, answer.source) == (word, "model")
        assert client.counters["outcomes", word] == 1
    usual = Fallback(otherwise="review")
    with DecisionClient(url, fallback=usual, options=options) as client:
        answer = client.decide(row, dry_run=True)
    assert (answer.decision, answer.source) == ("review", "fallback")
    assert f"'{word}' is none of approve, review, decline" in answer.why
    assert not np.isfinite(answer.score)
