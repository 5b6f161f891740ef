"""A server follows its repository from release to release, and always answers."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.server.next_release import next_release
from tollgate.errors import TollgateError
from tollgate.repository.releases.release_file import (
    Release,
    read_release,
    release_path,
    write_release,
)
from tollgate.repository.remote.repository_source import Folder
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton import control
from tollgate.server.triton.probe import probe
from tollgate.supervisor import reconciler as converging
from tollgate.supervisor.reconciler import Reconciler
from tollgate.supervisor.stubs import find_stubs

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"
STEPS = ("fraud_features", "fraud_model", "fraud_decision")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed product, with a second version of model and policy."""
    copy = tmp_path_factory.mktemp("follow") / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for step in ("fraud_model", "fraud_decision"):
        shutil.copytree(copy / step / "1", copy / step / "2")
    return copy


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Embedded]:
    """One server for the tests of this module; they run in their order."""
    with serve(repository, state=repository.parent / "state") as server:
        yield server


@pytest.fixture(scope="module")
def refused() -> list[tuple[str, str]]:
    """Collect the releases that the server could not load."""
    return []


@pytest.fixture(scope="module")
def reconciler(
    served: Embedded, repository: Path, refused: list[tuple[str, str]]
) -> Reconciler:
    """Reconcile when the test calls it."""
    return Reconciler(
        served.serving["fraud"],
        source=Folder(repository, product="fraud"),
        product="fraud",
        on_failure=lambda release, reason: refused.append((release, reason)),
    )


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed may be tried again without a pause."""
    monkeypatch.setattr(converging, "_RETRY_S", 0.0)


class Caller:
    """Asks all the while."""

    def __init__(self, server: Embedded) -> None:
        self._server = server
        self.releases: list[str] = []
        self.problems: list[Exception] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Caller:
        self._thread.start()
        while not self.releases and not self.problems:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._ended.is_set():
            try:
                found = probe(self._server.triton, "fraud", rows=(1,)).release
                self.releases.append(found)
            except TollgateError as error:
                self.problems.append(error)


def loaded(server: Embedded) -> dict[str, list[int]]:
    """Slots that answer, per step."""
    return {step: control.ready_versions(server.triton, step) for step in STEPS}


def test_the_next_release_loads_while_requests_are_answered(
    served: Embedded, repository: Path, reconciler: Reconciler
) -> None:
    """Each answer is of one of the two; the steps of the one before stay loaded."""
    before = {stub.pid for stub in find_stubs(served.triton.pid)}
    release = next_release(repository, fraud_model=2)
    with Caller(served) as caller:
        reconciler.reconcile()
    assert caller.problems == []
    assert caller.releases == sorted(caller.releases)
    assert probe(served.triton, "fraud").release == release.name == "fraud-2"
    assert loaded(served) == {
        "fraud_features": [1001],
        "fraud_model": [1, 2],
        "fraud_decision": [1001, 1002],
    }
    assert before <= {stub.pid for stub in find_stubs(served.triton.pid)}
    assert reconciler.status.state == "converged"
    assert reconciler.status.running == reconciler.status.desired == "fraud-2"


def test_the_way_back_starts_no_process(
    served: Embedded, repository: Path, reconciler: Reconciler
) -> None:
    """The release before this one is loaded still."""
    before = {stub.pid for stub in find_stubs(served.triton.pid)}
    first = read_release(REPOSITORY, product="fraud")
    write_release(repository, first)
    with Caller(served) as caller:
        reconciler.reconcile()
    assert caller.problems == []
    assert caller.releases[-1] in ("fraud-1", "fraud-2")
    assert probe(served.triton, "fraud").release == "fraud-1"
    assert {stub.pid for stub in find_stubs(served.triton.pid)} == before


def test_a_release_that_does_not_load_changes_nothing(
    served: Embedded,
    repository: Path,
    reconciler: Reconciler,
    refused: list[tuple[str, str]],
) -> None:
    """Its step fails as it starts: reported once, with the reason; it never answers."""
    before = loaded(served)
    step = repository / "fraud_decision" / "3"
    shutil.copytree(repository / "fraud_decision" / "1", step)
    (step / "model.py").write_text('raise RuntimeError("not today")\n')
    release = next_release(repository, fraud_decision=3)
    with Caller(served) as caller:
        reconciler.reconcile()
        reconciler.reconcile()
    assert caller.problems == []
    assert set(caller.releases) == {"fraud-1"}
    assert loaded(served) == before
    assert reconciler.status.state == "failed"
    assert (reconciler.status.desired, reconciler.status.running) == (
        release.name,
        "fraud-1",
    )
    assert "not today" in reconciler.status.doing
    assert reconciler.status.attempts == 2
    assert [name for name, _ in refused] == [release.name]


def test_another_reason_is_reported_too(
    served: Embedded,
    repository: Path,
    reconciler: Reconciler,
    refused: list[tuple[str, str]],
) -> None:
    """The same release fails for another reason: both are reported."""
    before = len(refused)
    release = next_release(repository, fraud_decision=3)
    policy = repository / "fraud_decision/3/policy.yaml"
    content = policy.read_bytes()
    policy.write_bytes(content + b"\n")
    reconciler.reconcile()
    policy.write_bytes(content)
    reconciler.reconcile()
    reconciler.reconcile()
    reasons = [
        reason for name, reason in refused[before:] if name in (release.name, "")
    ]
    assert ["changed" in one for one in reasons] == [True, False]
    assert "not today" in reasons[1]


def test_a_switch_parses_each_configuration_once(
    served: Embedded,
    repository: Path,
    reconciler: Reconciler,
    parsed_configs: Counter[str],
) -> None:
    """The check and the plan of a release share what was read."""
    release = next_release(repository, fraud_model=1, fraud_decision=2)
    parsed_configs.clear()
    reconciler.reconcile()
    assert reconciler.status.running == release.name
    models = ("fraud", *STEPS)
    texts = [(repository / one / "config.pbtxt").read_text() for one in models]
    assert parsed_configs == Counter(texts)


class Broken(Folder):
    """A repository that breaks in a way nobody thought of."""

    def look(self) -> str:
        """Fail."""
        raise ValueError("nobody thought of it")


def test_an_unexpected_error_is_reported_and_retried(
    served: Embedded, repository: Path
) -> None:
    """The state says so, the old release goes on, and it is tried again."""
    follower = Reconciler(
        served.serving["fraud"],
        source=Broken(repository, product="fraud"),
        product="fraud",
    )
    follower.start()
    until_s = time.monotonic() + 600
    while follower.status.attempts < 2:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    follower.stop()
    assert follower.status.state == "failed"
    assert "nobody thought of it" in follower.status.doing
    assert probe(served.triton, "fraud").release == follower.status.running


def test_files_may_come_after_the_release_that_names_them(
    served: Embedded, repository: Path, reconciler: Reconciler
) -> None:
    """A copy that is not finished is waited for."""
    write_release(repository, read_release(REPOSITORY, product="fraud"))
    release = next_release(repository, fraud_decision=2)
    away = repository.parent / "away"
    (repository / "fraud_decision" / "2").rename(away)
    reconciler.reconcile()
    assert reconciler.status.state == "failed"
    assert "version 2 is not in the repository" in reconciler.status.doing
    away.rename(repository / "fraud_decision" / "2")
    reconciler.reconcile()
    assert reconciler.status.running == release.name
    assert probe(served.triton, "fraud").release == release.name


class Overtaken(Folder):
    """A repository whose release is another one by the time its files are looked at."""

    def bring(self, release: Release) -> None:
        """Write a release that nobody can serve."""
        other = msgspec.structs.replace(release, name="fraud-99", hashes={})
        write_release(self.folder, other)


def test_what_is_taken_is_what_was_read(
    served: Embedded, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that came in between is looked at next; its faults are its own."""
    release = next_release(repository, fraud_decision=1)
    serving = served.serving["fraud"]
    # Nor does a full disk, at the last step, take back what answers by then.
    monkeypatch.setattr(serving, "_path", repository / "gone" / "record.json")
    source = Overtaken(repository, product="fraud")
    reconciler = Reconciler(serving, source=source, product="fraud")
    reconciler.reconcile()
    assert (reconciler.status.state, reconciler.status.running) == (
        "converged",
        release.name,
    )
    assert probe(served.triton, "fraud", rows=(1,)).release == release.name
    monkeypatch.undo()
    write_release(repository, release)


def test_a_release_keeps_its_name_to_itself(
    served: Embedded, repository: Path, reconciler: Reconciler
) -> None:
    """Other versions under the name that answers are not taken for the same."""
    path = release_path(repository, "fraud")
    before = path.read_bytes()
    name = read_release(repository, product="fraud").name
    changed = next_release(repository, fraud_model=2).name
    path.write_bytes(path.read_bytes().replace(changed.encode(), name.encode()))
    reconciler.reconcile()
    assert f"{name} answers already, with other versions" in reconciler.status.doing
    path.write_bytes(before)
    reconciler.reconcile()
    assert reconciler.status.state == "converged"


def test_a_server_that_died_comes_back_as_it_was(
    served: Embedded, repository: Path, reconciler: Reconciler
) -> None:
    """From its own copies; the repository may say what it likes."""
    name = served.serving["fraud"].active
    assert name is not None
    path = release_path(repository, "fraud")
    before = path.read_bytes()
    path.write_text("{")
    reconciler.reconcile()
    assert reconciler.status.state == "failed"
    served.triton.restart()
    served.serving["fraud"].again()
    assert probe(served.triton, "fraud").release == name.release
    path.write_bytes(before)
