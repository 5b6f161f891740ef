"""
Write and read explain.npz.

A .npz is a zip of .npy arrays. It is read here member by member, and no array is
created before its size and type are known to be right: a damaged or hostile file ends
in one error, and nothing in it is ever unpickled. The file of a version directory must
have the SHA-256 that the record next to it names: then it belongs to exactly that
model.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from tollgate.errors import RepositoryError
from tollgate.explanation.check import check
from tollgate.explanation.document import Explanation, Linear, Link, Trees
from tollgate.schema import ARTIFACT_FILE

EXPLAIN_FILE = "explain.npz"
VERSION = 1
LARGEST_BYTES = 1 << 28  # of the whole file, unpacked
_HEADER = "header"
_BASE = "base"
_TYPES: dict[str, dict[str, str]] = {
    "trees": {
        "start": "<i4",
        "output": "<i4",
        "left": "<i4",
        "feature": "<i4",
        "threshold": "<f4",
        "missing_left": "|b1",
        "by_code": "|b1",
        "code_node": "<i4",
        "code": "<i4",
        "cover": "<f8",
        "value": "<f8",
    },
    "linear": {
        "source": "<i4",
        "slope": "<f8",
        "offset": "<f8",
        "by_category": "|b1",
        "category": "<f8",
        "filled": "<f8",
        "mean": "<f8",
        "coefficient": "<f8",
    },
    "none": {},
}


class _Header(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """
    Everything in the file except the arrays; JSON.

    Values at their default are not written, so that older readers can read the file.
    """

    version: int
    kind: Literal["trees", "linear", "none"]
    features: tuple[str, ...]
    classes: tuple[int | str, ...]
    link: Link
    reason: str = ""
    missing: float | None = None
    zero_is_missing: tuple[int, ...] = ()
    codes_truncate: bool = False
    codes_exact: bool = False
    from_mean: bool = False


class _Record(msgspec.Struct, frozen=True):
    """The entry for the file in the artifact.json next to it; the rest is skipped."""

    files: dict[str, str] = {}


def encode_explanation(explanation: Explanation) -> bytes:
    """Return the file's bytes; the same explanation gives the same bytes."""
    trees, linear = explanation.trees, explanation.linear
    part = trees or linear
    header = _Header(
        version=VERSION,
        kind="trees" if trees else "linear" if linear else "none",
        features=explanation.features,
        classes=explanation.classes,
        link=explanation.link,
        reason=explanation.reason,
        missing=trees.missing if trees else None,
        zero_is_missing=trees.zero_is_missing if trees else (),
        codes_truncate=trees.codes_truncate if trees else False,
        codes_exact=trees.codes_exact if trees else False,
        from_mean=linear.from_mean if linear else False,
    )
    arrays: dict[str, Any] = {
        _HEADER: np.frombuffer(msgspec.json.encode(header), dtype=np.uint8),
        _BASE: explanation.base.astype("<f8"),
    }
    for name, dtype in _TYPES[header.kind].items():
        arrays[name] = np.ascontiguousarray(getattr(part, name), dtype=dtype)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def read_explanation(path: Path) -> Explanation:
    """
    Read and check a version directory's explain.npz.

    Raises:
        RepositoryError: The file is missing, damaged or inconsistent, or is not the one
            that the artifact.json next to it names.
    """
    data = _read(path)
    _require_named(path, hashlib.sha256(data).hexdigest())
    return decode_explanation(data, source=path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RepositoryError(path, f"cannot be read: {error.strerror}") from error


def _require_named(path: Path, found: str) -> None:
    """Check that the record next to a file names it with this SHA-256."""
    record = path.with_name(ARTIFACT_FILE)
    try:
        files = msgspec.json.decode(_read(record), type=_Record).files
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RepositoryError(record, str(error)) from error
    named = files.get(path.name)
    if named is None:
        problem = f"names no {path.name}: convert the model again"
        raise RepositoryError(record, problem, where="files")
    if named != found:
        raise RepositoryError(
            path,
            f"has SHA-256 {found[:12]}…, {ARTIFACT_FILE} says {named[:12]}…: damaged, "
            "or of another model",
        )


def decode_explanation(data: bytes, *, source: object) -> Explanation:
    """
    Read and check the bytes of an explain.npz.

    Raises:
        RepositoryError: They are damaged or inconsistent; the message names the source.
    """
    try:
        found = _parsed(data)
        check(found)
    except RepositoryError as error:
        raise RepositoryError(source, error.problem, where=error.where) from error
    except (
        *(ValueError, EOFError, OSError, RuntimeError, NotImplementedError),
        *(zipfile.BadZipFile, zlib.error, struct.error, MemoryError),
        *(msgspec.MsgspecError, SyntaxError),
    ) as error:
        said = " ".join(str(error).split())[:200]
        raise RepositoryError(source, f"is damaged: {said}") from error
    return found


def _parsed(data: bytes) -> Explanation:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        unpacked = sum(one.file_size for one in infos.values())
        if unpacked > LARGEST_BYTES:
            _refuse(f"unpacks to {unpacked:,} bytes; {LARGEST_BYTES:,} are read")
        if _HEADER not in infos:
            _refuse("is missing", where=_HEADER)
        raw = _array(archive, infos[_HEADER], dtype="|u1").tobytes()
        header = msgspec.json.decode(raw, type=_Header)
        if header.version != VERSION:
            _refuse(f"is {header.version}; {VERSION} is read", where="version")
        types = {_BASE: "<f8", **_TYPES[header.kind]}
        if set(infos) != {_HEADER, *types} or len(infos) != len(archive.infolist()):
            _refuse(f"holds {sorted(infos)}; needed are {sorted([_HEADER, *types])}")
        arrays: dict[str, Any] = {
            name: _array(archive, infos[name], dtype=dtype)
            for name, dtype in types.items()
        }
    base = arrays.pop(_BASE)
    trees = linear = None
    if header.kind == "trees":
        trees = Trees(
            **arrays,
            missing=header.missing,
            zero_is_missing=header.zero_is_missing,
            codes_truncate=header.codes_truncate,
            codes_exact=header.codes_exact,
        )
    elif header.kind == "linear":
        linear = Linear(**arrays, from_mean=header.from_mean)
    return Explanation(
        features=header.features,
        classes=header.classes,
        link=header.link,
        base=base,
        trees=trees,
        linear=linear,
        reason=header.reason,
    )


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, *, dtype: str) -> Any:
    """Check the type and size of one array, then read it."""
    where = info.filename.removesuffix(".npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        _refuse("is packed in a way that is not read", where=where)
    body = io.BytesIO(archive.read(info))
    npy: Any = np.lib.format
    if npy.read_magic(body) != (1, 0):
        _refuse("is no array of .npy version 1.0", where=where)
    shape, by_columns, found = npy.read_array_header_1_0(body)
    if found.str != dtype:
        _refuse(f"is {found}; needed is {np.dtype(dtype)}", where=where)
    array = np.frombuffer(body.read(), dtype=dtype)
    if any(one < 0 for one in shape) or int(np.prod(shape, dtype=object)) != array.size:
        _refuse(f"claims {list(shape)} and holds {array.size} numbers", where=where)
    return array.reshape(shape, order="F" if by_columns else "C")


def _refuse(problem: str, *, where: str = "") -> None:
    raise RepositoryError("", problem, where=where)
