"""A bundle has the bytes of its release, and any change of it is refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.edge.bundles import REPOSITORY, Keys
from tollgate.cli import main
from tollgate.edge.bundle import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    make_keys,
    read_bundle,
    read_private_key,
    read_public_key,
)
from tollgate.edge.packing import pack
from tollgate.errors import InputError, RepositoryError


def tollgate(*arguments: str) -> int:
    """Run a command in this process; its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tollgate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def test_a_bundle_holds_the_release_and_nothing_else(bundle: Path, keys: Keys) -> None:
    """Each file has the hash that release.json names; openssl accepts the signature."""
    release = json.loads((REPOSITORY / "fraud" / "release.json").read_bytes())
    with zipfile.ZipFile(bundle) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    assert list(found) == [
        MANIFEST_FILE,
        SIGNATURE_FILE,
        "fraud/release.json",
        "fraud_decision/1/policy.yaml",
        "fraud_features/1/features.yaml",
        "fraud_model/1/model.onnx",
    ]
    for name in list(found)[3:]:
        assert hashlib.sha256(found[name]).hexdigest() == release["hashes"][name]
    for name in (MANIFEST_FILE, SIGNATURE_FILE):
        (bundle.parent / name).write_bytes(found[name])
    subprocess.run(
        [
            *("openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(keys.public)),
            *("-rawin", "-in", MANIFEST_FILE, "-sigfile", SIGNATURE_FILE),
        ],
        cwd=bundle.parent,
        check=True,
        capture_output=True,
    )
    read = read_bundle(bundle, key=keys.verifies, product="fraud")
    assert read.manifest.release == release["name"]
    assert read.manifest.sequence == 1
    assert read.files == {name: found[name] for name in list(found)[2:]}


def test_the_same_release_has_the_same_bytes(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """Times and places of the repository leave no trace."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(REPOSITORY, copy)
    out = tmp_path / "again.bundle"
    pack(copy, product="fraud", key=keys.signs, out=out)
    assert out.read_bytes() == bundle.read_bytes()


def test_each_change_of_the_release_has_a_higher_number(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback to an earlier release is a change, too."""
    shutil.copytree(REPOSITORY, tmp_path / "model_repository")
    monkeypatch.chdir(tmp_path)
    decision = tmp_path / "model_repository" / "fraud_decision"
    shutil.copytree(decision / "1", decision / "2")
    policy = decision / "2" / "policy.yaml"
    policy.write_text(policy.read_text() + "# changed\n")
    numbers = []
    for change in (
        None,
        ["activate", "--set", "decision=2", "--reason", "a test"],
        ["rollback", "--reason", "a test"],
    ):
        if change:
            assert tollgate("release", *change) == 0
        made = pack(
            tmp_path / "model_repository",
            product="fraud",
            key=keys.signs,
            out=tmp_path / "fraud.bundle",
        )
        numbers.append((made.sequence, made.release))
    assert numbers == [(1, "fraud-1"), (2, "fraud-2"), (3, "fraud-1")]


def test_every_changed_byte_is_refused(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """Bytes of the archive's own tables and of the files, changed one by one."""
    content = bundle.read_bytes()
    draw = random.Random(7)
    table = content.index(b"PK\x01\x02")
    places = {*range(0, 2_000, 7), *range(table, len(content), 3)}
    places |= {draw.randrange(len(content)) for _ in range(300)}
    damaged = tmp_path / "fraud.bundle"
    for at in sorted(places):
        changed = bytes([content[at] ^ (1 << draw.randrange(8))])
        damaged.write_bytes(content[:at] + changed + content[at + 1 :])
        with pytest.raises(InputError) as caught:
            read_bundle(damaged, key=keys.verifies)
        assert_one_line(caught.value, damaged)


def test_every_truncated_bundle_is_refused(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """A part of a file, also an empty one; and one with more at its end."""
    content = bundle.read_bytes()
    damaged = tmp_path / "fraud.bundle"
    for end in (*range(0, len(content), 997), len(content) - 1):
        damaged.write_bytes(content[:end])
        with pytest.raises(InputError) as caught:
            read_bundle(damaged, key=keys.verifies)
        assert_one_line(caught.value, damaged)
    damaged.write_bytes(content + b"\0")
    with pytest.raises(InputError):
        read_bundle(damaged, key=keys.verifies)


def assert_one_line(error: InputError, path: Path) -> None:
    """Check that the message names the file, in one line."""
    assert str(error).startswith(f"{path}: ")
    assert "\n" not in str(error)


def rewritten(
    bundle: Path,
    change: Callable[[dict[str, bytes]], None],
    key: Ed25519PrivateKey | None = None,
) -> bytes:
    """Write a bundle's entries again, changed; signed again where a key is given."""
    with zipfile.ZipFile(bundle) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    if key is not None:
        entries[SIGNATURE_FILE] = key.sign(entries[MANIFEST_FILE])
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, one in entries.items():
            archive.writestr(zipfile.ZipInfo(name), one)
    return content.getvalue()


def edited(old: bytes, new: bytes) -> Callable[[dict[str, bytes]], None]:
    """Return a change of the manifest's text."""

    def change(entries: dict[str, bytes]) -> None:
        assert old in entries[MANIFEST_FILE]
        entries[MANIFEST_FILE] = entries[MANIFEST_FILE].replace(old, new)

    return change


MODEL = b"fraud_model/1/model.onnx"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edited(b'"format": 1', b'"format": 2'), "has format 2, this Tollgate reads 1"),
        (edited(b"tollgate device bundle", b"other bundle"), "is no tollgate device"),
        (edited(MODEL, b"../../../etc/cron"), "manifest.json: Expected"),
        (edited(MODEL, b"/etc/cron.d/model"), "manifest.json: Expected"),
        (edited(MODEL, b"a/../../../m.onnx"), "manifest.json: Expected"),
        (edited(b'"sequence": 1', b'"sequence": 0'), "manifest.json: Expected"),
        (edited(MODEL, b"fraud_model/1/other.onnx"), "the file is missing"),
        (edited(b'"release"', b'"unknown": 1, "release"'), "unknown field"),
        (edited(b'"name": "full"', b'"name": "half"'), "Invalid enum value 'half'"),
        (lambda entries: entries.update({"more": b"x"}), "does not name"),
    ],
)
def test_a_signed_bundle_must_have_the_form(
    change: Callable[[dict[str, bytes]], None],
    words: str,
    *,
    bundle: Path,
    keys: Keys,
    tmp_path: Path,
) -> None:
    """A signature alone does not make it usable."""
    other = tmp_path / "other.bundle"
    other.write_bytes(rewritten(bundle, change, keys.signs))
    with pytest.raises(InputError, match=words) as caught:
        read_bundle(other, key=keys.verifies)
    assert_one_line(caught.value, other)


def test_an_unsigned_or_foreign_bundle_is_refused(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """Each with its own words."""
    other = tmp_path / "other.bundle"
    other.write_bytes(
        rewritten(bundle, lambda files: files.pop(SIGNATURE_FILE) and None)
    )
    with pytest.raises(InputError, match="is not signed"):
        read_bundle(other, key=keys.verifies)
    other.write_bytes(
        rewritten(bundle, lambda files: files.pop(MANIFEST_FILE) and None)
    )
    with pytest.raises(InputError, match="is no bundle: it has no manifest"):
        read_bundle(other, key=keys.verifies)
    with pytest.raises(InputError, match="another key signed it"):
        read_bundle(bundle, key=Keys(tmp_path, "other").verifies)
    with pytest.raises(InputError, match="is of fraud, not sensors"):
        read_bundle(bundle, key=keys.verifies, product="sensors")
    other.write_bytes(b"no archive")
    with pytest.raises(InputError, match="is no bundle, or damaged"):
        read_bundle(other, key=keys.verifies)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_bundle(tmp_path / "absent", key=keys.verifies)


def test_a_changed_release_is_not_packed(keys: Keys, tmp_path: Path) -> None:
    """The old bundle stays as it was."""
    shutil.copytree(REPOSITORY, tmp_path / "models")
    out = tmp_path / "fraud.bundle"
    out.write_bytes(b"old")
    policy = tmp_path / "models" / "fraud_decision" / "1" / "policy.yaml"
    policy.write_text(policy.read_text() + "# changed\n")
    with pytest.raises(RepositoryError, match="the file has changed"):
        pack(tmp_path / "models", product="fraud", key=keys.signs, out=out)
    assert out.read_bytes() == b"old"


def test_a_pipe_or_a_folder_is_no_bundle(keys: Keys, tmp_path: Path) -> None:
    """Reading a pipe would not end."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InputError, match="is no regular file"):
            read_bundle(path, key=keys.verifies)


def test_keys_that_cannot_sign_are_refused(keys: Keys, tmp_path: Path) -> None:
    """A key of another kind, one that others may read, a public one, no key."""
    readable = tmp_path / "readable.key"
    shutil.copy(keys.private, readable)
    readable.chmod(0o644)
    with pytest.raises(InputError, match="others may read it; chmod 600"):
        read_private_key(readable)
    other = tmp_path / "rsa.key"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "x25519", "-out", str(other)],
        check=True,
        capture_output=True,
    )
    other.chmod(0o600)
    with pytest.raises(InputError, match="is no Ed25519 key"):
        read_private_key(other)
    with pytest.raises(InputError, match="is no public key"):
        read_public_key(other)
    other.write_text("no key")
    with pytest.raises(InputError, match="is no private key"):
        read_private_key(other)


def test_made_keys_sign_and_verify(tmp_path: Path) -> None:
    """The private key is its owner's alone; no file is replaced."""
    private, public = tmp_path / "new.key", tmp_path / "new.pub"
    make_keys(private, public)
    assert private.stat().st_mode & 0o777 == 0o600
    signature = read_private_key(private).sign(b"bytes")
    read_public_key(public).verify(signature, b"bytes")
    with pytest.raises(InputError, match="is there already"):
        make_keys(tmp_path / "another.key", public)
    assert not (tmp_path / "another.key").exists()


@pytest.mark.parametrize(
    ("private", "public", "names"),
    [
        ("a.key", "no/a.pub", "a.pub: cannot be written"),
        ("no/a.key", "a.pub", "a.key: cannot be written"),
        ("a.key", "a.key", "a.key: is there already"),
        ("a.key", "./../{folder}/a.key", "a.key: is there already"),
    ],
)
def test_half_a_pair_of_keys_is_not_left(
    private: str, public: str, names: str, *, tmp_path: Path
) -> None:
    """A private key without its public one, or one file for both."""
    with pytest.raises(InputError, match=names):
        make_keys(tmp_path / private, tmp_path / public.format(folder=tmp_path.name))
    assert not list(tmp_path.iterdir())


def test_the_command_writes_a_bundle(
    keys: Keys,
    bundle: Path,
    tmp_path: Path,
    *,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same bytes; a product that ranks, or that is unknown, is refused."""
    monkeypatch.chdir(REPOSITORY.parent)
    out = tmp_path / "fraud.bundle"
    arguments = ["--key", str(keys.private), "--out", str(out)]
    assert tollgate("edge", "pack", "fraud", *arguments) == 0
    assert "fraud-1 of fraud, sequence 1, 4 files" in capsys.readouterr().out
    assert out.read_bytes() == bundle.read_bytes()
    assert tollgate("edge", "pack", "frod", *arguments) == 2
    assert "'frod' is no product" in capsys.readouterr().err
