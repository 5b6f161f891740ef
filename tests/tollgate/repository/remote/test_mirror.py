"""What a server needs of an object store is here whole and proven, or not at all."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tollgate.errors import InputError, ObjectStoreError, RepositoryError, SetupError
from tollgate.repository.lint.product_rules import check
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import (
    Release,
    read_release,
    write_release,
)
from tollgate.repository.remote.mirror import Mirror, mirror_folder, read_wanted
from tollgate.repository.remote.objects import Objects
from tollgate.repository.snapshot import RepositorySnapshot

_NUMBERS = itertools.count()


class Bucket:
    """A store's repository, and the folder it is filled from."""

    def __init__(self, store: Any, name: str, folder: Path) -> None:
        self.files, self.folder = store.files(), folder
        self.url = store.fill(name, folder)
        self.root = self.url.removeprefix("s3://")

    def put(self, path: str, content: bytes | None = None) -> None:
        """Write one file, as it is in the folder or otherwise."""
        if content is None:
            content = (self.folder / path).read_bytes()
        self.files.pipe_file(f"{self.root}/{path}", content)

    def wanted(self) -> Release:
        """Read the release that the store names."""
        return read_wanted(Objects(self.url), product="fraud")

    def release(self, **versions: int) -> Release:
        """Add versions to the store, and the release that names them."""
        current = read_release(self.folder, product="fraud")
        for step, version in versions.items():
            if not (self.folder / step / str(version)).exists():
                shutil.copytree(
                    self.folder / step / "1", self.folder / step / str(version)
                )
            for path in (self.folder / step / str(version)).iterdir():
                self.put(path.relative_to(self.folder).as_posix())
        release = compose_release(
            RepositorySnapshot(self.folder),
            product="fraud",
            versions={**current.versions, **versions},
            actor="test",
            reason="test",
            spec_hash=current.spec_hash,
        )
        write_release(self.folder, release)
        self.put("fraud/release.json")
        return release


@pytest.fixture
def bucket(object_store: Any, repository: Path) -> Bucket:
    """The committed product in a bucket of its own."""
    return Bucket(object_store, f"bucket-{next(_NUMBERS)}", repository)


@pytest.fixture
def mirror(bucket: Bucket, tmp_path: Path) -> Mirror:
    """Empty still."""
    return Mirror(Objects(bucket.url), folder=tmp_path / "mirror", product="fraud")


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files of a repository; without what a mirror keeps for itself."""
    return {
        name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not (name := path.relative_to(folder).as_posix()).startswith(".")
    }


def times(folder: Path) -> dict[str, int]:
    """Say when each file was written."""
    return {
        name: (folder / name).stat().st_mtime_ns
        for name in contents(folder)
        if name != "fraud/release.json"
    }


def test_a_mirror_is_the_repository_that_the_release_names(
    bucket: Bucket, mirror: Mirror
) -> None:
    """The same bytes, but no version that no release names; and it is sound."""
    bucket.put("fraud_model/7/model.onnx", b"nobody asked for this")
    mirror.begin()
    wanted = contents(bucket.folder)
    del wanted["fraud/1/.gitkeep"]  # the folder is there without it
    assert contents(mirror.folder).keys() == wanted.keys()
    del wanted["fraud/release.json"]  # printed anew
    found = contents(mirror.folder)
    assert {name: found[name] for name in wanted} == wanted
    assert read_release(mirror.folder, product="fraud") == bucket.wanted()
    assert check(RepositorySnapshot(mirror.folder), product="fraud") == []


def test_what_is_here_is_not_fetched_again_and_what_is_not_named_goes(
    bucket: Bucket, mirror: Mirror
) -> None:
    """Third release: the first one's model is swept; nothing else is written."""
    mirror.begin()
    first = times(mirror.folder)
    bucket.release(fraud_model=2)
    mirror.bring(bucket.wanted())
    second = times(mirror.folder)
    assert second.items() > first.items()
    assert {name.rpartition("/")[0] for name in second.keys() - first.keys()} == {
        "fraud_model/2"
    }
    bucket.release(fraud_model=3)
    mirror.bring(bucket.wanted())
    models = sorted(path.name for path in (mirror.folder / "fraud_model").iterdir())
    assert models == ["2", "3", "config.pbtxt", "configs"]
    assert check(RepositorySnapshot(mirror.folder), product="fraud") == []


def test_the_stamp_tells_one_release_from_another(
    bucket: Bucket, mirror: Mirror
) -> None:
    """The same until release.json is written; empty when there is none."""
    before = mirror.look()
    assert before
    assert mirror.look() == before
    bucket.release(fraud_model=2)
    assert mirror.look() not in ("", before)
    bucket.files.rm_file(f"{bucket.root}/fraud/release.json")
    assert mirror.look() == ""
    with pytest.raises(RepositoryError, match=r"fraud/release.json: is not there"):
        mirror.read()
    bucket.put("fraud/release.json", bytes((16 << 20) + 1))
    with pytest.raises(RepositoryError, match=r"release.json: has 16,777,217 bytes; "):
        mirror.read()


def test_a_configuration_follows_and_one_that_is_gone_goes(
    bucket: Bucket, mirror: Mirror
) -> None:
    """What lies beside the versions has no hash; the store's stamp tells."""
    bucket.put("fraud_model/configs/gpu.pbtxt", b"# one\n")
    mirror.begin()
    gpu = mirror.folder / "fraud_model/configs/gpu.pbtxt"
    assert gpu.read_bytes() == b"# one\n"
    bucket.put("fraud_model/configs/gpu.pbtxt", b"# two\n")
    mirror.begin()
    assert gpu.read_bytes() == b"# two\n"
    bucket.files.rm_file(f"{bucket.root}/fraud_model/configs/gpu.pbtxt")
    mirror.begin()
    assert not gpu.exists()


def test_a_damaged_object_is_never_used(bucket: Bucket, mirror: Mirror) -> None:
    """It is named with both hashes; the release before it stays, until it is mended."""
    mirror.begin()
    before = contents(mirror.folder)
    bucket.release(fraud_model=2)
    bucket.put("fraud_model/2/model.onnx", b"damaged")
    with pytest.raises(RepositoryError) as caught:
        mirror.bring(bucket.wanted())
    assert caught.value.source == f"{bucket.url}/fraud_model/2/model.onnx"
    assert "is not what was released: release " in caught.value.problem
    assert not (mirror.folder / "fraud_model/2/model.onnx").exists()
    after = contents(mirror.folder)
    assert {name: after[name] for name in before} == before
    mirror.begin()  # with what is here
    bucket.put("fraud_model/2/model.onnx")
    mirror.begin()
    assert read_release(mirror.folder, product="fraud").name == "fraud-2"


def test_a_damaged_copy_is_fetched_again(bucket: Bucket, mirror: Mirror) -> None:
    """A file of a version is used with its hash only, whoever changed it."""
    mirror.begin()
    model = mirror.folder / "fraud_model/1/model.onnx"
    model.write_bytes(b"damaged")
    (mirror.folder / "fraud_model/1/stray.txt").write_text("of nobody")
    mirror.begin()
    assert not (mirror.folder / "fraud_model/1/stray.txt").exists()
    assert check(RepositorySnapshot(mirror.folder), product="fraud") == []


@pytest.mark.parametrize(
    "path",
    ["fraud_model/1/../../../up", "/etc/up", "fraud_model/9/x", "other/1/x", "up"],
)
def test_a_release_names_files_of_its_versions_only(
    bucket: Bucket, mirror: Mirror, path: str
) -> None:
    """No file of this machine is written because a store says so."""
    release = bucket.wanted()
    hashes = {**release.hashes, path: "0" * 64}
    bad = msgspec.structs.replace(release, hashes=hashes)
    with pytest.raises(RepositoryError, match="is no file of a version"):
        mirror.bring(bad)
    assert contents(mirror.folder) == {}


def test_a_plan_that_this_machine_built_stays(bucket: Bucket, mirror: Mirror) -> None:
    """It lies beside the model, and no release names it."""
    mirror.begin()
    plan = mirror.folder / "fraud_model/1/model.plan"
    plan.write_bytes(b"plan")
    mirror.begin()
    assert plan.exists()


def test_a_store_goes_away_and_comes_back(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passing_store: Any,
) -> None:
    """Meanwhile what is here can be begun with; with nothing here, it says so."""
    away = passing_store
    for name, value in away.environment.items():
        monkeypatch.setenv(name, value)
    url = away.fill("away", repository)
    mirror = Mirror(Objects(url), folder=tmp_path / "mirror", product="fraud")
    mirror.begin()
    stamp = mirror.look()
    away.stop()
    with pytest.raises(ObjectStoreError, match=r"^s3://away/models/fraud/release.json"):
        mirror.look()
    mirror.begin()
    other = Mirror(Objects(url), folder=tmp_path / "other", product="fraud")
    with pytest.raises(ObjectStoreError):
        other.begin()
    away.start()
    away.fill("away", repository)
    assert mirror.look() == stamp


BRING = """
import sys
from pathlib import Path
from tollgate.repository.remote.mirror import Mirror, read_wanted
from tollgate.repository.remote.objects import Objects
url, folder = sys.argv[1:]
mirror = Mirror(Objects(url), folder=Path(folder), product="fraud")
print("ready", flush=True)
mirror.bring(read_wanted(Objects(url), product="fraud"))
"""


def test_a_refresh_that_is_killed_leaves_one_release_or_the_other(
    bucket: Bucket, mirror: Mirror
) -> None:
    """Killed at ever later moments, from an empty folder on: never half of one."""
    for step, pause_s in enumerate((0.0, 0.05, 0.1, 0.2, 0.4), start=2):
        bucket.release(fraud_model=step)
        command = [sys.executable, "-c", BRING, bucket.url, str(mirror.folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(pause_s)
            os.kill(process.pid, signal.SIGKILL)
        if (mirror.folder / "fraud/release.json").exists():
            assert check(RepositorySnapshot(mirror.folder), product="fraud") == []
    mirror.begin()
    assert check(RepositorySnapshot(mirror.folder), product="fraud") == []


def test_other_stores_are_named_by_their_addresses(
    repository: Path, tmp_path: Path
) -> None:
    """Whatever fsspec knows; a kind that nobody knows is one line."""
    mirror = Mirror(
        Objects(f"file://{repository}"), folder=tmp_path / "copy", product="fraud"
    )
    mirror.begin()
    assert check(RepositorySnapshot(mirror.folder), product="fraud") == []
    with pytest.raises((InputError, SetupError), match="nothing"):
        Objects("nothing://at/all")


def test_folders_of_two_stores_are_two(tmp_path: Path) -> None:
    """By name, and by address where the names are one."""
    one, two = (mirror_folder(tmp_path, f"s3://{x}/models/") for x in "ab")
    assert one != two
    assert one.name.startswith("models-")
    assert one == mirror_folder(tmp_path, "s3://a/models")
