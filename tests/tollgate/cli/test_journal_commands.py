"""`journal` as a person types it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from tests.support.audit.decided_records import decided
from tests.support.audit.random_records import REPOSITORY, made
from tollgate.audit.chain.chain import Chain
from tollgate.cli.app import app
from tollgate.journal.decision_record import encode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key

Run = Callable[..., tuple[int, str]]


def run(*arguments: str) -> tuple[int, str]:
    """Run a command; exit status and output."""
    done = CliRunner().invoke(app, ["journal", *arguments])
    return done.exit_code, " ".join(done.output.split()) + repr(done.exception)


@pytest.fixture
def sealed(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Path:
    """A folder into which `journal run` has sealed forty decisions."""
    for number in range(4):
        raw = encode_chunk(made(10, first=10 * number))
        redis_client.xadd(stream_key("fraud"), {CHUNK_FIELD: raw})
    folder = tmp_path / "journal"
    status, text = run(
        *("run", "--journal-url", store_url, "--folder", str(folder), "--until-idle"),
        *("--repository", str(REPOSITORY), "--keep", "40000d"),
    )
    assert status == 0, text
    assert "sealed 40 decisions in 1 segments" in text
    return folder


def test_run_learns_of_releases_from_an_object_store(
    tmp_path: Path, store_url: str, redis_client: redis.Redis, object_store: Any
) -> None:
    """A release is archived with its first record, wherever the repository is."""
    models = tmp_path / "models"
    shutil.copytree(REPOSITORY, models, ignore=shutil.ignore_patterns("__pycache__"))
    url = object_store.fill("journalled", models)
    raw = encode_chunk(made(10))
    redis_client.xadd(stream_key("fraud"), {CHUNK_FIELD: raw})
    folder = tmp_path / "journal"
    where = ("--folder", str(folder), "--state", str(tmp_path / "state"))
    status, text = run(
        *("run", "--journal-url", store_url, "--until-idle", "--repository", url),
        *where,
    )
    assert status == 0, text
    (archived,) = Chain(folder, product="fraud").alive("release")
    assert "features.yaml" in " ".join(one.name for one in archived.files)


def test_run_seals_and_verify_proves(sealed: Path) -> None:
    """Keys and anchor lie next to the folder; `verify` finds the anchor by itself."""
    assert (sealed.parent / "journal.keys").is_dir()
    status, text = run("verify", str(sealed))
    assert status == 0, text
    assert "40 decisions: as sealed" in text
    assert "no anchor" not in text
    status, text = run("verify", str(sealed), "--anchor", str(sealed / "nowhere"))
    assert status != 0
    assert "holds no mark" in text


def test_a_folder_of_journals_is_answered_by_their_names(
    sealed: Path, tmp_path: Path
) -> None:
    """The state folder's `journal` has a folder for each product."""
    shutil.copytree(sealed, tmp_path / "home" / "fraud")
    status, text = run("verify", str(tmp_path / "home"))
    assert status != 0
    assert "holds no journal itself; give its folder fraud" in " ".join(text.split())


def test_verify_names_what_was_changed(sealed: Path) -> None:
    """Exit status 1, and a line for each finding."""
    (path,) = sealed.glob("*.segment.parquet")
    path.unlink()
    status, text = run("verify", str(sealed))
    assert status == 1
    assert f"{path.name}: was removed" in text


def test_retain_removes_what_is_old_and_the_rest_is_proven(sealed: Path) -> None:
    """During or after the run of the worker; a second call finds nothing."""
    where = ["--folder", str(sealed)]
    assert "removed 0 decisions" in run("retain", "--keep", "40000d", *where)[1]
    assert list(sealed.glob("*.segment.parquet"))
    status, text = run("retain", "--keep", "1s", *where)
    assert status == 0, text
    assert "removed 40 decisions" in text
    assert not list(sealed.glob("*.segment.parquet"))
    assert "removed 0 decisions" in run("retain", "--keep", "1s", *where)[1]
    status, text = run("verify", str(sealed))
    assert status == 0, text
    assert "40 removed by retention: as sealed" in text


def test_erase_forgets_a_person(sealed: Path) -> None:
    """Once; the second time there is nobody, and the chain is still whole."""
    customer = made(10).entity_id[0][0].decode()
    terminal = made(10).entity_id[1][0].decode()
    both = ["--customer", customer, "--subject", f"terminal={terminal}"]
    status, text = run("erase", *both, "--folder", str(sealed))
    assert status == 0, text
    assert "erased 2 of 2 subjects" in text
    status, text = run("erase", *both, "--folder", str(sealed))
    assert status == 1
    assert "2 had no key" in text
    assert run("verify", str(sealed))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["erase"], "names nobody"),
        (["erase", "--subject", "someone"], "is not ENTITY=ID"),
        (["erase", "--customer", "x", "--keys", "nowhere"], "there is no subjects"),
        (["retain", "--keep", "1d", "--folder", "nowhere"], "holds no journal"),
        (["retain", "--keep", "long"], "is not a duration"),
        (["verify", "nowhere"], "nowhere: is no folder"),
        (["run", "--journal-url", "unix://x", "--keep", "long"], "is not a duration"),
        (["run", "--journal-url", "http://x", "--folder", "f"], "begins with none of"),
    ],
)
def test_mistakes_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    """What is wrong, and with which value."""
    monkeypatch.chdir(tmp_path)
    status, text = run(*arguments)
    assert status != 0
    assert words in text


def test_export_writes_a_page(sealed: Path, tmp_path: Path) -> None:
    """By transaction id, readable for this user alone; an unknown one is reported."""
    page = tmp_path / "decision.html"
    where = ["--folder", str(sealed), "--out", str(page)]
    transaction = made(10).transaction_id[3].decode()
    status, text = run("export", transaction, *where)
    assert status == 0, text
    assert f"{made(10).writer}:3" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600
    status, text = run("export", "never", *where)
    assert status != 0
    assert "never: cannot be found in this journal" in text


def labels_file(path: Path) -> Path:
    """Write labels of ten purchases, all fraud."""
    records = made(10)
    rows = zip(records.transaction_id, *records.entity_id, strict=True)
    lines = [
        ",".join([*(one.decode() for one in row), f"{time_us},1,{time_us + 1}"])
        for row, time_us in zip(rows, records.event_time_us, strict=True)
    ]
    head = "transaction_id,customer_id,terminal_id,event_time,label,label_time"
    path.write_text("\n".join([head, *lines]))
    return path


def test_labels_go_into_store_and_journal(
    sealed: Path, tmp_path: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """The command says what landed where, and judges the releases."""
    path = labels_file(tmp_path / "labels.csv")
    where = ["--folder", str(sealed), "--repository", str(REPOSITORY)]
    load = ["labels", "load", str(path), *where, "--store-url", store_url]
    done = CliRunner().invoke(app, load)
    text = " ".join(done.output.split())
    assert done.exit_code == 0, text
    assert "store: applied 10, had already 0, too late 0" in text
    assert "journal: 10 of 10 labels are new" in text
    assert "fraud-1 40 10 10 1.000" in text
    assert redis_client.keys("tollgate:fraud:????????????????:*")
    text = " ".join(CliRunner().invoke(app, load).output.split())
    assert "had already 10" in text
    assert "journal: 0 of 10" in text
    assert run("verify", str(sealed))[0] == 0


def asked(*words: str) -> Any:
    """Run a command; its standard output is one JSON value."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_journal_is_reported_as_json(
    sealed: Path, tmp_path: Path, store_url: str
) -> None:
    """Forty decisions, ten labels that are all fraud and were all declined."""
    path = labels_file(tmp_path / "labels.csv")
    where = ("--folder", str(sealed), "--repository", str(REPOSITORY))
    found = asked("labels", "load", str(path), *where, "--store-url", store_url)
    assert found["store"] == {"applied": 10, "duplicate": 0, "late": 0}
    assert found["journal"] == {"labels": 10, "new": 10}
    (judged,) = asked("labels", "accuracy", "--folder", str(sealed))
    assert [judged] == found["releases"]
    assert (judged["release"], judged["decisions"]) == ("fraud-1", 40)
    assert (judged["labelled"], judged["frauds"], judged["flagged"]) == (10, 10, 1.0)
    assert judged["roc_auc"] is None  # one class alone has none
    proof = asked("journal", "verify", str(sealed))
    assert (proof["findings"], proof["records"]) == ([], 40)
    assert asked("journal", "retain", "--keep", "1d", "--folder", str(sealed)) == {
        "removed": 40
    }


def test_keep_removes_what_is_older(sealed: Path, store_url: str) -> None:
    """Decisions of another year are gone; the chain says so, and holds."""
    status, text = run(
        *("run", "--journal-url", store_url, "--folder", str(sealed), "--until-idle"),
        *("--repository", str(REPOSITORY), "--keep", "1d"),
    )
    assert status == 0, text
    assert not list(sealed.glob("*.parquet"))
    status, text = run("verify", str(sealed))
    assert status == 0, text
    assert "0 decisions, 40 removed by retention: as sealed" in text


def test_replay_lists_what_comes_out_otherwise(sealed: Path) -> None:
    """Decisions that nobody made are none of the release's: exit status 1, by name."""
    where = [str(sealed), "--repository", str(REPOSITORY)]
    status, text = run("replay", *where)
    assert status == 1
    assert f"{made(10).writer}:0 of fraud-1: probabilities" in text
    assert "fraud-1: 0 of 40 the same, 40 otherwise (40 in probabilities" in text
    status, text = run("replay", *where, "--release", "fraud-7")
    assert status == 1
    assert "fraud-1, through fraud-7: 40 decisions not decided again" in text
    status, text = run("replay", str(sealed.parent / "nowhere"))
    assert status != 0
    assert "holds no journal" in text


def test_replay_of_real_decisions_is_clean(
    tmp_path: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """What a release decided it decides again; exit status 0."""
    raw = encode_chunk(decided(30))
    redis_client.xadd(stream_key("fraud"), {CHUNK_FIELD: raw})
    folder, repository = tmp_path / "journal", ("--repository", str(REPOSITORY))
    options = ("--journal-url", store_url, "--folder", str(folder), "--until-idle")
    assert run("run", *options, *repository)[0] == 0
    status, text = run("replay", str(folder), *repository)
    assert status == 0, text
    assert "fraud-1: 30 of 30 the same (bit for bit" in text
    status, text = run("replay", str(folder), *repository, "--json")
    assert status == 0, text
    assert '"same": 30' in text


def test_dataset_takes_labels_of_a_file(sealed: Path, tmp_path: Path) -> None:
    """What is labelled there is written; the rest is counted."""
    path = labels_file(tmp_path / "labels.csv")
    out = tmp_path / "rows.parquet"
    where = ["--folder", str(sealed), "--repository", str(REPOSITORY)]
    status, text = run("dataset", str(out), *where, "--labels", str(path))
    assert status == 0, text
    assert "10 of 40 decisions, 10 frauds, features c36f8242c6fa0068" in text
    assert "left out: 30 without a label" in text
    status, text = run("dataset", str(out), *where, "--legitimate-after", "1d")
    assert status == 0, text
    assert "40 of 40 decisions, 0 frauds" in text
    assert run("verify", str(sealed))[0] == 0
