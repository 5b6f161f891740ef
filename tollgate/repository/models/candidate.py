"""Check that a folder may become the next version of a model, before it is loaded."""

from __future__ import annotations

import stat
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tollgate.errors import RepositoryError
from tollgate.repository.hashes import SHORT_DIGITS, hash_file, version_files
from tollgate.repository.models.artifact_file import (
    ARTIFACT_FILE,
    read_artifact,
    require_same_files,
)
from tollgate.repository.models.onnx_model import MODEL_FILE
from tollgate.repository.repository_check import check_staged
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.versions import list_versions

# Refuse a model.onnx that stores its weights in other files.
#
# ONNX may name any path for them, also outside of the folder, and no checksum covers
# those files. The check runs before onnxruntime opens anything.

# Field numbers of onnx.proto on every path from a model to a tensor, and from there to
# `external_data`. All of them are read as repeated, so nothing can hide.
_WAYS = {
    "Model": {7: "Graph", 25: "Function"},
    "Function": {7: "Node"},
    "Graph": {1: "Node", 5: "Tensor", 15: "Sparse"},
    "Node": {5: "Attribute"},
    "Attribute": {
        5: "Tensor",
        6: "Graph",
        10: "Tensor",
        11: "Graph",
        22: "Sparse",
        23: "Sparse",
    },
    "Sparse": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
    "Entry": {},
}
_KEY, _VALUE = 1, 2  # field numbers of an Entry
_MAX_BYTES = 2**31 - 1  # protobuf's own limit of one message


def require_whole(model: Path) -> None:
    """
    Check that a model is one file.

    Args:
        model: The model.onnx.

    Raises:
        RepositoryError: It cannot be read, is no ONNX file, or names other files.
    """
    try:
        if model.stat().st_size > _MAX_BYTES:
            raise RepositoryError(model, "is over 2 GiB, which no ONNX file can be")
        parsed = _message_class()()
        parsed.ParseFromString(model.read_bytes())
    except OSError as exc:
        raise RepositoryError(model, f"cannot be read: {exc.strerror}") from exc
    except DecodeError as exc:
        problem = "is not an ONNX model, or only a part of one"
        raise RepositoryError(model, problem) from exc
    if place := _first_external(parsed, kind="Model"):
        raise RepositoryError(
            model,
            f"keeps weights in another file ({place}), which no checksum covers; "
            "save it as one file",
        )


def _first_external(message: Any, *, kind: str) -> str:
    """Return the first file that a message refers to; empty if there is none."""
    for number, inner in _WAYS[kind].items():
        found = getattr(message, f"field_{number}")
        if inner == "Entry":
            named = {entry.field_1: entry.field_2 for entry in found}
            if named:
                return str(named.get(b"location", b"").decode("utf-8", "replace"))
            continue
        for one in found:
            if place := _first_external(one, kind=inner):
                return place
    return ""


@cache
def _message_class() -> Any:
    """Declare the required part of onnx.proto; the onnx package is not needed."""
    file = descriptor_pb2.FileDescriptorProto(name="ways.proto", package="ways")
    kinds = descriptor_pb2.FieldDescriptorProto
    for kind, ways in _WAYS.items():
        message = file.message_type.add(name=kind)
        for number, inner in ways.items():
            message.field.add(
                name=f"field_{number}",
                number=number,
                label=kinds.LABEL_REPEATED,
                type=kinds.TYPE_MESSAGE,
                type_name=f".ways.{inner}",
            )
        for number in (_KEY, _VALUE) if kind == "Entry" else ():
            message.field.add(
                name=f"field_{number}",
                number=number,
                label=kinds.LABEL_OPTIONAL,
                type=kinds.TYPE_BYTES,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ways.Model"))


_NEEDED = (MODEL_FILE, ARTIFACT_FILE)
# Records and pictures are copied along with a model. No file that a server could run
# is: Triton looks for the library of a backend in the version directory first.
_CARRIED = frozenset(
    (".csv", ".html", ".json", ".md", ".npz", ".parquet", ".png", ".svg", ".txt")
)


def require_files(source: Path) -> None:
    """
    Check that a folder has the files of a model version, and no others.

    This looks at names and kinds only, so that copying the folder is safe after it.

    Args:
        source: The folder that the caller passed.

    Raises:
        RepositoryError: It is no folder, lacks a file, or holds a link, a special file
            or a file that is neither the model nor a record of it.
    """
    if not source.is_dir():
        raise RepositoryError(source, "is not a folder")
    for path in sorted(source.rglob("*")):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise RepositoryError(path, "is not a plain file; links are not followed")
    for name in _NEEDED:
        if not (source / name).is_file():
            raise RepositoryError(source, f"has no {name}: not a converted model")
    for path in version_files(source):
        if path != source / MODEL_FILE and path.suffix not in _CARRIED:
            allowed = " ".join(sorted(_CARRIED))
            problem = f"is no part of a model version; next to {MODEL_FILE}: {allowed}"
            raise RepositoryError(path, problem)


def require_fit(staged: Path, snapshot: RepositorySnapshot, *, product: str) -> None:
    """
    Check that a staged version could serve in its product as it is released.

    Args:
        staged: Directory with the files of the version; no other process changes it.
        snapshot: The model repository that it is staged for.
        product: Name of the ensemble.

    Raises:
        RepositoryError: The record and the model disagree, the model was made for other
            features, or the repository would not be valid with it.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    _require_checksum(staged)
    require_whole(staged / MODEL_FILE)
    for finding in check_staged(snapshot, product=product, staged=staged):
        raise finding.as_error()


def require_unchanged(repository: Path, step: str) -> None:
    """
    Check that no published version of a model has changed since it was published.

    Raises:
        RepositoryError: A version lost its record, or its model or a file that is read
            later has other bytes than the record says.
    """
    for number in list_versions(repository, step):
        _require_checksum(repository / step / str(number))


def _require_checksum(version: Path) -> None:
    """Compare the model, and the files that are read later, with its record."""
    record = read_artifact(version)
    named = record.sha256
    found = hash_file(version / MODEL_FILE)
    if found != named:
        raise RepositoryError(
            version / MODEL_FILE,
            f"has SHA-256 {found[:SHORT_DIGITS]}…, {ARTIFACT_FILE} says "
            f"{named[:SHORT_DIGITS]}…: damaged, or another model",
        )
    require_same_files(version, record.files)
