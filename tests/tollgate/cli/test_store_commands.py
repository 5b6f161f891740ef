"""Commands on a repository in an object store; no server runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tollgate.repository.releases.release_file import product_names

MODELS = Path(__file__).parents[3] / "model_repository"


@pytest.fixture(scope="module")
def url(object_store: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The committed product in a bucket; the tests run in their order."""
    copy = tmp_path_factory.mktemp("bucket") / "model_repository"
    shutil.copytree(MODELS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    address: str = object_store.fill("commands", copy)
    return address


def run(
    folder: Path, url: str, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as somebody with a state folder of their own."""
    command = [sys.executable, "-c", "from tollgate.cli import main; main()", *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"COLUMNS": "200", "TOLLGATE_REPOSITORY": url, "TOLLGATE_STATE": str(folder)}
        | environment,
    )


@pytest.mark.parametrize(
    "words", [("release", "list"), ("release", "history"), ("release", "status")]
)
def test_a_misspelt_product_is_answered_by_those_of_the_store(
    url: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The nearest and all, in one line."""
    done = run(tmp_path / "ada", url, *words, "--product", "frod")
    assert (done.returncode, done.stdout) == (2, "")
    said = "'frod' is no product of"
    assert said in done.stderr
    known = ", ".join(product_names(MODELS))
    assert done.stderr.endswith(f"did you mean fraud? there are {known}\n")
    assert done.stderr.count("\n") == 1


def test_a_model_is_published_into_a_store(
    url: str, tmp_path: Path, object_store: Any
) -> None:
    """All its files; another copy finds the proven version; no server is notified."""
    model = tmp_path / "model"
    shutil.copytree(MODELS / "fraud_model" / "1", model)
    done = run(tmp_path / "ada", url, "publish", str(model), "--no-dry-load")
    assert done.returncode == 0, done.stderr
    assert "published  fraud_model version 2" in done.stdout
    assert "no server was notified" in done.stdout
    there = object_store.files().find("commands/models/fraud_model/2")
    assert sorted(Path(name).name for name in there) == sorted(os.listdir(model))
    listed = run(tmp_path / "bob", url, "release", "versions", "--json")
    assert listed.returncode == 0, listed.stderr
    states = [(one["version"], one["state"]) for one in json.loads(listed.stdout)]
    assert states == [(1, "released"), (2, "sound")]


def test_two_people_release_it(url: str, tmp_path: Path, object_store: Any) -> None:
    """Proposed by one, confirmed by the other, each with a copy of their own."""
    words = ["activate", "--set=model=2", "--reason=r", "--require-approval"]
    asked = run(tmp_path / "ada", url, "release", *words, "--actor=ada")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("proposed  fraud-2")
    same = run(tmp_path / "ada", url, "release", "approve", "fraud-2", "--actor=ada")
    assert same.returncode == 2
    assert "ada proposed it; somebody else confirms" in same.stderr
    done = run(tmp_path / "bob", url, "release", "approve", "fraud-2", "--actor=bob")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["desired  fraud-2"]
    files = object_store.files()
    named = json.loads(files.cat_file("commands/models/fraud/release.json"))
    assert (named["name"], named["versions"]["fraud_model"]) == ("fraud-2", 2)
    assert not files.exists("commands/models/fraud/proposed.json")


def test_the_store_is_checked_as_a_folder_is(url: str, tmp_path: Path) -> None:
    """Sound, after what the tests before did to it."""
    done = run(tmp_path, url, "check")
    assert (done.returncode, done.stdout) == (0, "fraud: sound\n"), done.stderr


@pytest.mark.parametrize(
    ("address", "words", "status", "problem"),
    [
        ("s3://commands/nothing", ["check"], 2, "nothing/fraud: is not there"),
        ("s3://no-such-bucket/m", ["check"], 2, "no-such-bucket/m/fraud: is not there"),
        ("none://here", ["check"], 2, "none"),
        ("s3://commands/models", ["features", "show"], 2, "here, name a folder"),
        (
            "s3://commands/models",
            ["publish", ".", "--url=localhost:1"],
            2,
            "loads what the release names",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(
    url: str,
    tmp_path: Path,
    address: str,
    words: list[str],
    status: int,
    problem: str,
) -> None:
    """With the address in it."""
    done = run(tmp_path, address, *words)
    assert done.returncode == status, done.stderr
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_store_that_does_not_answer_is_one_line(tmp_path: Path, url: str) -> None:
    """Exit status 1, as with every server that does not answer."""
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    up = run(tmp_path, url, "up", **nowhere)
    assert up.returncode == 1, up.stderr
    assert url in up.stderr
    assert len(up.stderr.splitlines()) == 1, up.stderr


def test_features_are_read_from_the_store(
    url: str, tmp_path: Path, store_url: str
) -> None:
    """A command that needs them fetches what the release names; here, before a feed."""
    history = tmp_path / "history.csv"
    history.write_text(
        "transaction_id,customer_id,terminal_id,amount,event_time\n"
        "p-1,alice,shop,12.34,2026-01-15T08:15:00\n"
    )
    store = {"TOLLGATE_STORE_URL": store_url}
    done = run(tmp_path / "eve", url, "feed", str(history), **store)
    assert done.returncode == 0, done.stderr
    assert "1 events" in done.stderr
    done = run(tmp_path / "eve", url, "stream", "--until-idle", **store)
    assert done.returncode == 0, done.stderr
    assert "applied 1," in done.stdout
    done = run(tmp_path / "eve", url, "materialize", str(history), **store)
    assert done.returncode == 0, done.stderr
    assert "1 purchases" in done.stdout
