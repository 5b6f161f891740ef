"""An operation reads each configuration once, and still detects changed files."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import msgspec
import pytest

import tollgate
from tollgate.cli.operations import challenger_commands, release_commands
from tollgate.errors import RepositoryError
from tollgate.repository.lint.linting import Question, lint
from tollgate.repository.lint.product_rules import check, require_sound
from tollgate.repository.releases.activation import activate, compose_next
from tollgate.repository.releases.release_file import read_release, write_release
from tollgate.repository.releases.release_history import read_history
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.publishing import publish
from tollgate.server.serving.initial_load import ProductLoader

MODELS = ("fraud", "fraud_features", "fraud_model", "fraud_decision")
MOST_FILES = 35  # of the library, whose functions one `release activate` calls


@pytest.fixture
def versions(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The product with a second version of model and policy, for commands."""
    for step in ("fraud_model", "fraud_decision"):
        shutil.copytree(repository / step / "1", repository / step / "2")
    monkeypatch.chdir(repository.parent)
    return repository


def once(repository: Path) -> Counter[str]:
    """Each configuration of the product, parsed once."""
    return Counter((repository / one / "config.pbtxt").read_text() for one in MODELS)


def new_release(repository: Path) -> None:
    """Run `release activate` with another version of the model."""
    release_commands.activate(
        versions=["model=2"],
        reason="test",
        actor="ada",
        repository=str(repository),
        product="fraud",
        state=str(repository.parent / "state"),
        wait=0,
    )


def earlier_release(repository: Path) -> None:
    """Run `release activate` with the name of the release that was active first."""
    release_commands.activate(
        "fraud-1",
        reason="test",
        actor="ada",
        repository=str(repository),
        product="fraud",
        state=str(repository.parent / "state"),
        wait=0,
    )


def canary(repository: Path) -> None:
    """Run `challenger start` with another version of the model."""
    challenger_commands.start(
        ["model=2"],
        reason="test",
        mode="canary",
        force=True,
        actor="ada",
        repository=str(repository),
        product="fraud",
        state=str(repository.parent / "state"),
        wait=0,
    )


@pytest.mark.parametrize("command", [new_release, earlier_release, canary])
def test_a_command_parses_each_configuration_once(
    versions: Path, parsed_configs: Counter[str], command: Callable[[Path], None]
) -> None:
    """Check, composition and activation share what was read."""
    command(versions)
    assert parsed_configs == once(versions)
    assert read_history(versions, "fraud")[-1].reason.endswith("test")


def files_entered(call: Callable[[], object]) -> set[str]:
    """Return the files of the library in which a call runs a function."""
    library = str(Path(tollgate.__file__).parent)
    entered: set[str] = set()

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(library):
            entered.add(file.removeprefix(library + "/"))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered


def test_one_activation_enters_few_files(versions: Path) -> None:
    """A reader of one activation opens at most this many files."""
    new_release(versions)  # imports everything
    earlier_release(versions)
    command = files_entered(lambda: new_release(versions))
    assert "repository/releases/activation.py" in command
    assert len(command) <= MOST_FILES, sorted(command)


def test_publishing_parses_each_configuration_once(
    versions: Path, parsed_configs: Counter[str]
) -> None:
    """The checks of the staged version share what was read."""
    published = publish(
        versions / "fraud_model" / "1",
        repository=versions,
        product="fraud",
        dry_load=False,
        measure=lambda model: {1: 10.0, 8: 2.0, 32: 1.0},
    )
    assert published.version == 3
    assert parsed_configs == once(versions)


def test_a_start_parses_each_configuration_once(
    versions: Path, parsed_configs: Counter[str]
) -> None:
    """The check before a start and the plan of what to load share what was read."""
    snapshot = RepositorySnapshot(versions)
    require_sound(snapshot, product="fraud")
    ProductLoader(snapshot, "fraud", state=versions.parent).require_plan()
    assert parsed_configs == once(versions)


def test_the_linter_parses_each_configuration_once(
    versions: Path, parsed_configs: Counter[str]
) -> None:
    """The rules for all models and those for products share what was read."""
    assert "fraud" in lint(Question(repository=versions)).products
    others = {text: 1 for text in parsed_configs if text not in once(versions)}
    assert parsed_configs == once(versions) | others


def test_a_snapshot_reads_a_configuration_when_it_is_first_needed(
    repository: Path,
) -> None:
    """A later change is seen by the next snapshot only."""
    snapshot = RepositorySnapshot(repository)
    config = repository / "fraud_model" / "config.pbtxt"
    config.write_text(config.read_text().replace("batch_size: 32", "batch_size: 16"))
    first = snapshot.config("fraud_model")
    assert first.max_batch_size == 16
    config.write_text("broken")
    assert snapshot.config("fraud_model") == first
    assert snapshot.product("fraud").steps["fraud_model"] == first
    with pytest.raises(RepositoryError, match="line 1"):
        RepositorySnapshot(repository).config("fraud_model")


def test_a_file_that_could_not_be_read_is_read_again(repository: Path) -> None:
    """An error is no part of a snapshot."""
    snapshot = RepositorySnapshot(repository)
    config = repository / "fraud_model" / "config.pbtxt"
    content = config.read_text()
    config.write_text("broken")
    with pytest.raises(RepositoryError, match="line 1"):
        snapshot.product("fraud")
    config.write_text(content)
    assert snapshot.product("fraud").model_step == "fraud_model"


def test_a_file_changed_after_it_was_hashed_is_refused(versions: Path) -> None:
    """The check of a release hashes the files again: a snapshot may be out of date."""
    snapshot = RepositorySnapshot(versions)
    release = compose_next(
        snapshot,
        product="fraud",
        versions={"fraud_model": 2},
        actor="ada",
        reason="test",
    )
    require_sound(snapshot, product="fraud", release=release)
    code = versions / "fraud_decision" / "1" / "model.py"
    code.write_bytes(code.read_bytes() + b"\n")
    with pytest.raises(RepositoryError, match="the file has changed"):
        require_sound(snapshot, product="fraud", release=release)
    with pytest.raises(RepositoryError, match="the file has changed"):
        activate(snapshot, release, action="activate", actor="ada", reason="test")
    assert read_release(versions, product="fraud").name == "fraud-1"


def test_a_release_published_after_the_snapshot_is_not_overwritten(
    versions: Path,
) -> None:
    """The comparison under the lock reads release.json and history again."""
    snapshot = RepositorySnapshot(versions)
    base = snapshot.release("fraud")
    release = compose_next(
        snapshot,
        product="fraud",
        versions={"fraud_model": 2},
        actor="ada",
        reason="test",
    )
    other = msgspec.structs.replace(base, name="fraud-9")
    write_release(versions, other)
    assert snapshot.release("fraud") == base
    with pytest.raises(RepositoryError, match="somebody changed the release"):
        activate(
            snapshot,
            release,
            action="activate",
            actor="ada",
            reason="test",
            instead_of=base,
        )
    assert read_release(versions, product="fraud") == other


def test_a_snapshot_has_the_release_history_and_hashes_of_the_repository(
    versions: Path,
) -> None:
    """It returns what the readers of single files return."""
    new_release(versions)
    snapshot = RepositorySnapshot(versions)
    release = read_release(versions, product="fraud")
    assert snapshot.release("fraud") == snapshot.current_release("fraud") == release
    assert list(snapshot.history("fraud")) == read_history(versions, "fraud")
    hashes = {
        path: digest
        for step, version in release.versions.items()
        for path, digest in snapshot.hashes(step, version=version).items()
    }
    assert hashes == release.hashes_of(release.versions)
    assert check(snapshot, product="fraud") == []


def test_a_product_without_a_release_has_none_in_a_snapshot(repository: Path) -> None:
    """Only a caller that needs a release gets an error."""
    (repository / "fraud" / "release.json").unlink()
    snapshot = RepositorySnapshot(repository)
    assert snapshot.current_release("fraud") is None
    assert snapshot.history("fraud") == ()
    with pytest.raises(RepositoryError, match="cannot be read: No such file"):
        snapshot.release("fraud")
