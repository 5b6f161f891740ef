"""Rule TG405: check that the server's onnxruntime reads the models."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from tollgate.repository.findings import Finding
from tollgate.repository.lint.lint_rule import Rule, Severity
from tollgate.repository.lint.view import ONNX_BACKEND, View
from tollgate.repository.models.onnx_model import MODEL_FILE
from tollgate.repository.models.targets import TARGETS, Target

RULES = (
    Rule(
        code="TG405",
        title="a model is newer than the server's onnxruntime reads",
        severity=Severity.ERROR,
        why="onnxruntime refuses operator sets and file formats newer than it knows, "
        "so the model does not load.",
        source="tried for each release: tollgate/repository/models/targets.py",
        mend="Convert it for this server (`tollgate convert --target RELEASE`), or "
        "serve with a newer one.",
    ),
)

# Wire types and field numbers of onnx.proto's ModelProto and OperatorSetIdProto.
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_IR_VERSION, _OPSET_IMPORT = 1, 8
_DOMAIN, _VERSION = 1, 2


class Header(msgspec.Struct, frozen=True):
    """
    The header of an ONNX file.

    Attributes:
        ir: Version of its format.
        opsets: Operator set by domain; the default domain is the empty name.
    """

    ir: int
    opsets: dict[str, int]


def findings(view: View, *, release: str) -> Iterator[Finding]:
    """
    Compare every version's model with the formats that a release reads.

    Args:
        view: The repository.
        release: Release of Triton, year and month; one between two known ones is
            assumed to read what the newer of them reads, so that no readable model is
            reported.
    """
    target = _target_of(release)
    if target is None:
        return
    for model, config in view.configured():
        if model.backend != ONNX_BACKEND:
            continue
        for version in model.versions:
            name = config.default_model_filename or MODEL_FILE
            path = model.directory / str(version) / name
            if path.is_file():
                yield from _graph_findings(path, target=target, release=release)


def _target_of(release: str) -> Target | None:
    """Look up a release, or the next newer one that is known."""
    newer = [name for name in sorted(TARGETS) if name >= release]
    return TARGETS[newer[0]] if newer else None


def _graph_findings(path: Path, *, target: Target, release: str) -> Iterator[Finding]:
    header = read_header(path)
    if header is None:
        problems = ["cannot be read as an ONNX model"]
    else:
        problems = [
            f"operator set {domain or 'ai.onnx'} {version}: Triton {release} reads "
            f"up to {target.newest[domain]}"
            for domain, version in sorted(header.opsets.items())
            if version > target.newest.get(domain, version)
        ]
        if header.ir > target.ir:
            problems.append(
                f"IR version {header.ir}: Triton {release} reads up to {target.ir}"
            )
    for problem in problems:
        yield Finding(code="TG405", file=str(path), where="", problem=problem)


def read_header(path: Path) -> Header | None:
    """
    Read format and operator sets of an ONNX file, without its graph.

    Returns:
        The header; None if the file cannot be read, or is no ONNX model.
    """
    ir = 0
    opsets: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, value in _fields(file, wanted=_OPSET_IMPORT):
                if number == _IR_VERSION and isinstance(value, int):
                    ir = value
                elif isinstance(value, bytes):
                    opsets |= _operator_set(value)
    except (OSError, ValueError):
        return None
    return Header(ir=ir, opsets=opsets) if ir and opsets else None


def _operator_set(content: bytes) -> dict[str, int]:
    """Read one entry of opset_import: domain and version."""
    domain, version = "", 0
    for number, value in _fields(io.BytesIO(content), wanted=_DOMAIN):
        if number == _DOMAIN and isinstance(value, bytes):
            domain = value.decode("utf-8")
        elif number == _VERSION and isinstance(value, int):
            version = value
    return {"" if domain == "ai.onnx" else domain: version}


def _fields(file: BinaryIO, *, wanted: int) -> Iterator[tuple[int, int | bytes]]:
    """
    Yield the fields of a message: numbers, and the bytes of the wanted field.

    Raises:
        ValueError: It is no protobuf message.
    """
    while (tag := _varint(file, first=True)) is not None:
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            yield number, _varint(file) or 0
        elif wire == _BYTES:
            size = _varint(file) or 0
            if number == wanted:
                yield number, file.read(size)
            else:
                file.seek(size, io.SEEK_CUR)
        elif wire in (_FIXED_32, _FIXED_64):
            file.seek(4 if wire == _FIXED_32 else 8, io.SEEK_CUR)
        else:
            raise ValueError(f"wire type {wire}")


def _varint(file: BinaryIO, *, first: bool = False) -> int | None:
    """Read a number; None at the end of the file, where one may be missing."""
    value = shift = 0
    while byte := file.read(1):
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
        if shift > 63:
            break
    if first and not shift:
        return None
    raise ValueError("ends within a number, or is none")
