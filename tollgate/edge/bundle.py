"""
Write and read bundles: one signed file with what a device needs of one release.

A bundle is a zip archive without compression. Its first entry is `manifest.json`, the
second one `manifest.sig`, the Ed25519 signature of the manifest's bytes; then come the
files that the manifest names, in the order of their names. The same release has the
same bytes, so a reader writes the archive again in memory and compares it: a byte that
the manifest does not cover, such as a time or a comment of the archive, cannot differ
either.
"""

from __future__ import annotations

import hashlib
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from tollgate.errors import InputError, os_errors
from tollgate.repository.atomic import replace_file
from tollgate.repository.field_types import Name, Sha256

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

KIND, FORMAT = "tollgate device bundle", 1
MANIFEST_FILE, SIGNATURE_FILE = "manifest.json", "manifest.sig"
MOST_BYTES = 1 << 30
_MOST_MANIFEST_BYTES = 1 << 20
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the first time that a zip archive can hold
_OWNER_ONLY = 0o600

FileName = Annotated[
    str,
    msgspec.Meta(
        # No part begins with a dot, so none is "..", and no name is absolute.
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*\Z",
        max_length=240,
    ),
]
Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]
VariantName = Literal["full", "pruned", "distilled", "quantized", "rules"]


class BundledFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The SHA-256 of a file, and its size in bytes."""

    sha256: Sha256
    bytes: Size


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    One way to decide, from the most to the least expensive one.

    Attributes:
        name: "full" is the model of the release, "rules" runs no model, the others name
            how a smaller model was made.
        model: Name of its model.onnx; empty for "rules".
        trees: Number of trees of the model; 0 without trees.
        compared: Number of rows on which it was compared with "full" when it was made.
        differing: How many of them it decided otherwise.
        us_per_row: Time of its model for a row alone, on the machine that made it, µs.
    """

    name: VariantName
    model: str
    trees: int = 0
    compared: int = 0
    differing: int = 0
    us_per_row: float = 0.0


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    Describe a bundle.

    Attributes:
        kind: Marks the file as a bundle.
        format: Version of this format.
        sequence: Number of the change that activated the release, from 1 on. A device
            accepts none that is lower than one it had.
        spec_hash: Hash of the feature spec, 16 hexadecimal digits.
        features: Name of the features.yaml.
        policy: Name of the policy.yaml.
        variants: From the most to the least expensive one.
        files: Every other file of the bundle, by its path in the repository.
    """

    kind: Literal["tollgate device bundle"] = "tollgate device bundle"
    format: int = FORMAT
    product: Name
    release: Name
    sequence: Annotated[int, msgspec.Meta(ge=1)]
    spec_hash: str
    features: FileName
    policy: FileName
    variants: Annotated[tuple[Variant, ...], msgspec.Meta(min_length=1)]
    files: dict[FileName, BundledFile]


class Bundle(msgspec.Struct, frozen=True):
    """
    A bundle whose signature and files are verified.

    Attributes:
        files: Content of each file, by its name.
    """

    manifest: Manifest
    files: dict[str, bytes]

    def extract(self, folder: Path) -> None:
        """
        Write the files into a folder.

        Raises:
            OSError: A file cannot be written.
        """
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def write_bundle(
    path: Path,
    manifest: Manifest,
    files: Mapping[str, bytes],
    *,
    key: Ed25519PrivateKey,
) -> Manifest:
    """
    Sign and write a bundle; the file is replaced as a whole.

    Args:
        manifest: Its `files` are computed from the files.

    Returns:
        The manifest with its files.

    Raises:
        InputError: A name or a value cannot be in a bundle, or the file cannot be
            written; an old one is untouched.
    """
    listed = {
        name: BundledFile(hashlib.sha256(content).hexdigest(), len(content))
        for name, content in sorted(files.items())
    }
    manifest = msgspec.structs.replace(manifest, files=listed)
    signed = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    _decode_manifest(signed, path)  # readers must accept it
    content = _archive(signed, key.sign(signed), files)
    with os_errors(InputError, path, "cannot be written"):
        replace_file(path, content)
    return manifest


def read_bundle(
    path: Path, *, key: Ed25519PublicKey, product: str | None = None
) -> Bundle:
    """
    Read a bundle, and verify its signature and every byte.

    Args:
        product: The product that it must be of; None for any.

    Raises:
        InputError: It cannot be read, is no bundle or only a part of one, is not signed
            with the private key of this public key, was changed, or is of another
            product or format.
    """
    with os_errors(InputError, path, "cannot be read"):
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe or a device may never end
            raise InputError(path, "is no regular file")
        if found.st_size > MOST_BYTES:
            raise InputError(path, f"is larger than {MOST_BYTES >> 20} MiB")
        content = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _verified(archive, content, path, key=key, product=product)
    except (
        *(zipfile.BadZipFile, struct.error, zlib.error, EOFError, NotImplementedError),
        *(RuntimeError, UnicodeDecodeError, ValueError, OSError),
    ) as error:
        problem = "is no bundle, or damaged: write or copy it again"
        raise InputError(path, problem) from error


def _verified(
    archive: zipfile.ZipFile,
    content: bytes,
    path: Path,
    *,
    key: Ed25519PublicKey,
    product: str | None,
) -> Bundle:
    """Verify signature, names, sizes and hashes, in this order."""
    from cryptography.exceptions import InvalidSignature

    entries = {one.filename: one for one in archive.infolist()}
    if MANIFEST_FILE not in entries:
        raise InputError(path, f"is no bundle: it has no {MANIFEST_FILE}")
    if SIGNATURE_FILE not in entries:
        raise InputError(path, f"is not signed: it has no {SIGNATURE_FILE}")
    if entries[MANIFEST_FILE].file_size > _MOST_MANIFEST_BYTES:
        raise InputError(path, f"{MANIFEST_FILE} is too large")
    if any(one.compress_type != zipfile.ZIP_STORED for one in entries.values()):
        raise InputError(path, "is compressed: no bundle of Tollgate is")
    signed, signature = archive.read(MANIFEST_FILE), archive.read(SIGNATURE_FILE)
    try:
        key.verify(signature, signed)
    except InvalidSignature as error:
        problem = "the signature does not fit: another key signed it, or it was changed"
        raise InputError(path, problem, where=SIGNATURE_FILE) from error
    manifest = _decode_manifest(signed, path)
    if product is not None and manifest.product != product:
        raise InputError(path, f"is of {manifest.product}, not {product}")
    files = {}
    for name, expected in manifest.files.items():
        if name not in entries:
            raise InputError(path, "the file is missing", where=name)
        files[name] = archive.read(name)
        if (
            len(files[name]) != expected.bytes
            or hashlib.sha256(files[name]).hexdigest() != expected.sha256
        ):
            raise InputError(path, "the file was changed", where=name)
    if content != _archive(signed, signature, files):
        problem = "has bytes that its manifest does not name: it was changed"
        raise InputError(path, problem)
    return Bundle(manifest, files)


class _Head(msgspec.Struct):
    """The fields by which a manifest of any format is recognized."""

    kind: str = ""
    format: int = 0


def _decode_manifest(signed: bytes, path: Path) -> Manifest:
    """
    Decode a manifest, and check that its parts fit.

    Raises:
        InputError: It is of another kind or format, or a field is wrong.
    """
    try:
        head = msgspec.json.decode(signed, type=_Head)
        if head.kind != KIND:
            raise InputError(path, f"is no {KIND}", where=MANIFEST_FILE)
        if head.format != FORMAT:
            problem = f"has format {head.format}, this Tollgate reads {FORMAT}"
            raise InputError(path, problem, where=MANIFEST_FILE)
        manifest = msgspec.json.decode(signed, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(path, str(error), where=MANIFEST_FILE) from error
    models = [one.model for one in manifest.variants if one.name != "rules"]
    names = [one.name for one in manifest.variants]
    if len(set(names)) < len(names):
        problem = f"has a variant twice: {', '.join(names)}"
        raise InputError(path, problem, where=MANIFEST_FILE)
    for name in (manifest.features, manifest.policy, *models):
        if name not in manifest.files:
            problem = f"names {name!r}, which is no file of the bundle"
            raise InputError(path, problem, where=MANIFEST_FILE)
    return manifest


def _archive(signed: bytes, signature: bytes, files: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a bundle."""
    content = io.BytesIO()
    entries = {MANIFEST_FILE: signed, SIGNATURE_FILE: signature}
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name, one in (*entries.items(), *sorted(files.items())):
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.create_system = 3  # Unix, wherever it is written
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, one)
    return content.getvalue()


def make_keys(private: Path, public: Path) -> None:
    """
    Generate an Ed25519 key and write both of its halves, PEM.

    Raises:
        InputError: A file is there already, or cannot be written; none is left then.
    """
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    for path in (private, public):
        if path.exists() or private.resolve() == public.resolve():
            raise InputError(path, "is there already; name another file")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
    shown = key.public_key().public_bytes(
        forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo
    )
    with os_errors(InputError, public, "cannot be written"):
        replace_file(public, shown)
    try:
        with os_errors(InputError, private, "cannot be written"):
            replace_file(private, secret, mode=_OWNER_ONLY)
    except InputError:
        public.unlink()
        raise


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """
    Read the key that signs bundles: Ed25519, PEM, without a password.

    Raises:
        InputError: It cannot be read, is none, or other users may read it.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    with os_errors(InputError, path, "cannot be read"):
        content, mode = path.read_bytes(), path.stat().st_mode
    if stat.S_IMODE(mode) & 0o077:
        raise InputError(path, f"others may read it; chmod 600 {path}")
    try:
        found = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = "is no private key in PEM without a password"
        raise InputError(path, problem) from error
    if not isinstance(found, Ed25519PrivateKey):
        raise InputError(path, "is no Ed25519 key; `tollgate edge key` makes one")
    return found


def read_public_key(path: Path) -> Ed25519PublicKey:
    """
    Read the key that verifies bundles: Ed25519, PEM.

    Raises:
        InputError: It cannot be read, or is none.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    with os_errors(InputError, path, "cannot be read"):
        content = path.read_bytes()
    try:
        found = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(path, "is no public key in PEM") from error
    if not isinstance(found, Ed25519PublicKey):
        raise InputError(path, "is no Ed25519 key; `tollgate edge key` makes one")
    return found
