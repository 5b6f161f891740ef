"""`tollgate release …` on a repository that no server here follows."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis

from tests.support.products.committed_product import copy_product
from tollgate.errors import ServerError
from tollgate.repository.releases.activation import activate, compose_next
from tollgate.repository.releases.release_file import (
    Release,
    read_release,
    release_content,
    write_release,
)
from tollgate.repository.releases.trial_changes import with_challenger
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.store.dual_writes import WrittenStates, states_key, written_state
from tollgate.supervisor.reconciler import ReconcileStatus, digest_of
from tollgate.supervisor.replicas import wait_for_release


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The committed product, with a second version of model and policy."""
    copy = copy_product(tmp_path / "model_repository")
    for step in ("fraud_model", "fraud_decision"):
        shutil.copytree(copy / step / "1", copy / step / "2")
    return copy


def command(repository: Path, *words: str) -> list[str]:
    """Write a command as a list."""
    code = "from tollgate.cli import main; main()"
    places = (f"--repository={repository}", "--product=fraud")
    return [sys.executable, "-c", code, "release", *words, *places]


def release(
    repository: Path, *words: str, status: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends with this status."""
    done = subprocess.run(
        command(repository, *words),
        capture_output=True,
        text=True,
        check=False,
        cwd=repository.parent,
        env={**os.environ, "COLUMNS": "200", "USER": "ada"},
    )
    assert done.returncode == status, done.stderr
    return done


def go(repository: Path, **versions: int) -> Release:
    """Make other versions the release."""
    made = compose_next(
        RepositorySnapshot(repository),
        product="fraud",
        versions=versions,
        actor="eve",
        reason="x",
    )
    activate(
        RepositorySnapshot(repository), made, action="activate", actor="eve", reason="x"
    )
    return made


def test_who_goes_back_after_somebody_else_does_not_go_forth(repository: Path) -> None:
    """Two see an alert; the second call is refused, so the bad one stays away."""
    go(repository, fraud_model=2)
    release(repository, "rollback", "--reason=it declines all")
    again = release(repository, "rollback", "--reason=it declines all", status=2)
    assert "went back already, from fraud-2 to fraud-1, at 2" in again.stderr
    assert read_release(repository, product="fraud").name == "fraud-1"
    release(repository, "rollback", "--to=fraud-2", "--reason=it was not that")
    assert read_release(repository, product="fraud").name == "fraud-2"


def test_who_goes_back_to_a_release_of_before_is_heeded_too(repository: Path) -> None:
    """It is what it was before that change, to the letter: still one went back."""
    go(repository, fraud_model=2)
    go(repository, fraud_decision=2)
    release(repository, "activate", "fraud-2", "--reason=it declines less")
    release(repository, "rollback", "--reason=it declines all")
    again = release(repository, "rollback", "--reason=it declines all", status=2)
    assert "went back already, from fraud-2 to fraud-3, at 2" in again.stderr
    assert read_release(repository, product="fraud").name == "fraud-3"


@pytest.mark.parametrize(
    "words", [("activate", "--set=model=2"), ("rollback",), ("activate", "fraud-1")]
)
def test_what_is_made_of_another_release_is_not_written(
    repository: Path, words: tuple[str, ...]
) -> None:
    """Somebody is faster while the command looks at what is there."""
    go(repository, fraud_decision=2)
    other = compose_next(
        RepositorySnapshot(repository),
        product="fraud",
        versions={"fraud_decision": 1, "fraud_model": 2},
        actor="eve",
        reason="x",
    )
    other = msgspec.structs.replace(other, name="fraud-9")  # no name of ours is taken
    folder = os.open(repository / "fraud", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with subprocess.Popen(
        command(repository, *words, "--reason=late"), stderr=subprocess.PIPE, text=True
    ) as late:
        try:
            _wait_for_lock(late)
            write_release(repository, other)
        finally:
            os.close(folder)  # it ends by itself when nobody holds the lock
        assert late.communicate()[1].count("somebody changed the release") == 1
    assert late.returncode == 2
    assert read_release(repository, product="fraud") == other


def _wait_for_lock(process: subprocess.Popen[str]) -> None:
    """Wait until a process waits for a lock."""
    while process.poll() is None:
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "->" and words[5] == str(process.pid):
                return
        time.sleep(0.02)
    raise AssertionError("it waited for no lock")


def test_a_reason_with_brackets_is_printed_as_it_is(repository: Path) -> None:
    """It is nobody's colour, and no table fails of it from then on."""
    reason = "[urgent] see [/tickets/7]"
    release(repository, "activate", "--set=model=2", f"--reason={reason}")
    for words in (("list",), ("history",)):
        assert reason in release(repository, *words).stdout


def test_what_waits_can_be_looked_at_before_it_is_confirmed(repository: Path) -> None:
    """By the name that the proposal printed."""
    proposed = release(
        repository, "activate", "--set=model=2", "--reason=x", "--require-approval"
    )
    assert "proposed  fraud-2" in proposed.stdout
    shown = json.loads(release(repository, "show", "fraud-2").stdout)
    assert shown["versions"]["fraud_model"] == 2
    text = release(repository, "diff", "fraud-1", "fraud-2").stdout
    assert "fraud_model  1 -> 2" in text
    release(repository, "show", "fraud-3", status=2)


def test_a_full_disk_is_one_line(repository: Path) -> None:
    """Whatever is written; here configurations, and nobody may write a byte."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    words = command(repository, "render", f"--out={repository.parent / 'out'}")
    words[2] = limit + words[2]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "tollgate: a disk cannot be written: File too large\n"


class Replica:
    """An admin port that answers as the test wants."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.place = f"127.0.0.1:{port}"
        self.says: list[ReconcileStatus] = []


@pytest.fixture
def replica() -> Iterator[Replica]:
    """Answers each question with the next of its words, the last again and again."""
    made: list[Replica] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            says = made[0].says
            body = msgspec.json.encode(says[:1])
            del says[: len(says) > 1]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        made.append(Replica(server.server_port))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield made[0]
        server.shutdown()
        thread.join()


def how_far(release: Release, **more: object) -> ReconcileStatus:
    """Say how far a server is with a release."""
    now = ReconcileStatus(
        product="fraud",
        desired=release.name,
        running="fraud-1",
        state="converged",
        doing="",
        since=release.time,
        file=digest_of(release_content(release)),
    )
    return msgspec.structs.replace(now, **more)


def test_a_replica_without_the_share_of_a_canary_is_behind(
    repository: Path, replica: Replica
) -> None:
    """It answers as the release, and not to whom the challenger should."""
    changed = with_challenger(
        RepositorySnapshot(repository),
        product="fraud",
        versions={"fraud_model": 2},
        mode="canary",
        percent=5,
        actor="ada",
        reason="x",
    )
    activate(
        RepositorySnapshot(repository),
        changed,
        action="challenger start",
        actor="ada",
        reason="x",
    )
    replica.says = [how_far(changed, state="failed", doing="[/no] such file")]
    done = release(repository, "status", f"--replica={replica.place}", status=1)
    assert "1 of 1 do not run fraud-1 with fraud-2 5 %" in done.stderr
    assert "failed: [/no] such file" in done.stdout
    replica.says = [how_far(changed, canary="fraud-2 5 %")]
    release(repository, "status", f"--replica={replica.place}")


def test_an_earlier_failure_does_not_end_the_wait(
    repository: Path, replica: Replica
) -> None:
    """A release that was activated again fails only if its new load fails."""
    there = read_release(repository, product="fraud")
    failed = how_far(there, state="failed", doing="disk full", attempts=3)
    replica.says = [failed, failed, how_far(there)]
    wait_for_release(replica.url, there, repository=repository, wait_s=30)
    again = msgspec.structs.replace(failed, attempts=4)
    replica.says = [failed, again]
    with pytest.raises(ServerError, match=r"fraud-1 was not loaded, .*: disk full"):
        wait_for_release(replica.url, there, repository=repository, wait_s=30)


def test_the_wait_ends_if_another_release_is_desired(
    repository: Path, replica: Replica
) -> None:
    """It is not said to answer when the one that came after it does."""
    mine = go(repository, fraud_model=2)
    other = go(repository, fraud_decision=2)
    replica.says = [how_far(other, running="fraud-3")]
    with pytest.raises(ServerError, match="another release than fraud-2 is desired"):
        wait_for_release(replica.url, mine, repository=repository, wait_s=30)


def test_a_product_that_the_server_lacks_is_not_requested(
    repository: Path, replica: Replica
) -> None:
    """Whatever else it serves."""
    there = read_release(repository, product="fraud")
    replica.says = [how_far(there, product="credit")]
    with pytest.raises(ServerError, match="fraud: is not served at http"):
        wait_for_release(replica.url, there, repository=repository, wait_s=30)


def test_a_release_that_reads_incomplete_values_prints_a_warning(
    repository: Path,
    redis_client: redis.Redis,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values that `migrate start` filled are complete; without a store, none is."""
    step = repository / "fraud_features"
    shutil.copytree(step / "1", step / "2")
    path = step / "2" / "features.yaml"
    path.write_text(path.read_text() + "\ngeneration: 1\n")
    versions = ("--set=features=2", "--reason=x")
    warning = "warning: fraud-2 reads other values"
    assert warning in release(repository, "activate", *versions).stderr
    back = release(repository, "rollback", "--reason=x").stderr
    assert "warning: fraud-1 reads other values" in back
    monkeypatch.setenv("TOLLGATE_STORE_URL", store_url)
    assert warning in release(repository, "activate", "fraud-2", "--reason=x").stderr
    states = [
        written_state(step / one / "features.yaml", since="x", filled=filled)
        for one, filled in (("1", "x"), ("2", None))
    ]
    redis_client.set(states_key("fraud"), msgspec.json.encode(WrittenStates(states)))
    back = release(repository, "rollback", "--to=fraud-1", "--reason=x").stderr
    assert "warning" not in back
    again = release(repository, "activate", "fraud-2", "--reason=x").stderr
    assert warning in again
