"""What an engineer gets, and what no bundle holds."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tollgate.errors import InputError
from tollgate.supervisor.bundle import FOLDER, write_at_fault, write_bundle

REPOSITORY = Path(__file__).parents[3] / "model_repository"


def contents(path: Path) -> dict[str, bytes]:
    """Read a bundle."""
    with tarfile.open(path) as archive:
        files = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_a_bundle_has_what_helps_and_nobodys_data(tmp_path: Path) -> None:
    """Logs, configurations, release; not the store, spools, journals and secrets."""
    for name in ("logs", "redis", "spool", "journal-spool"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.log").write_text(f"words of {name}")
    (tmp_path / "server.json").write_text('{"admin_secret": "s3cret"}')
    out = tmp_path / "b.tar.gz"
    found = contents(write_bundle(out, state=tmp_path, repository=REPOSITORY))
    assert found["bundle/logs/x.log"] == b"words of logs"
    config = (REPOSITORY / "fraud" / "config.pbtxt").read_bytes()
    assert found["bundle/repository/fraud/config.pbtxt"] == config
    for name in (
        *("fraud/release.json", "fraud_model/1/artifact.json", "files.txt"),
        *("fraud_features/1/features.yaml", "fraud_decision/1/policy.yaml"),
    ):
        assert found[f"bundle/repository/{name}"]
    assert b"numpy " in found["bundle/libraries.txt"]
    assert b"MemTotal" in found["bundle/machine/meminfo"]
    whole = b"".join(found.values())
    for words in (b"words of redis", b"words of spool", b"words of journal", b"s3cret"):
        assert words not in whole


def test_a_bundle_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """One line that names the file."""
    out = tmp_path / "absent" / "b.tar.gz"
    with pytest.raises(InputError, match=r"b\.tar\.gz: cannot be written"):
        write_bundle(out, state=tmp_path, repository=REPOSITORY)
    assert list(tmp_path.iterdir()) == []


def test_ten_bundles_are_kept_of_those_written_at_faults(tmp_path: Path) -> None:
    """The oldest goes first."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    for day in range(10, 22):
        (folder / f"202001{day}T000000Z.tar.gz").touch()
    newest = write_at_fault(state=tmp_path, repository=tmp_path)
    remaining = sorted(path.name for path in folder.iterdir())
    assert len(remaining) == 10
    assert remaining[-1] == newest.name
    assert remaining[0] == "20200113T000000Z.tar.gz"
