"""
Describe the content of explain.npz; write and read the file.

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
import numpy.typing as npt

from tollgate.errors import RepositoryError, os_errors
from tollgate.schema import ARTIFACT_FILE

Bools = npt.NDArray[np.bool_]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

Link = Literal["logistic", "softmax", "identity"]


class Trees(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """
    Hold trees whose leaves add up to the margin.

    The nodes of one tree are contiguous, level by level: the root first, the two
    children of a split adjacent, every child after its parent. At a split, a row goes
    left when `x <= threshold` in float32; where `by_code` is set, when its code is one
    of the split's; where x is missing, as `missing_left` says.

    Attributes:
        start: First node of each tree, and the number of nodes; int32 [T + 1].
        output: Margin to which a tree adds; -1 where every leaf has a value for each of
            several; int32 [T].
        left: Left child, the right one is the next; -1 for a leaf; int32 [nodes].
        feature: Column that a split tests, -1 for a leaf; int32 [nodes].
        threshold: float32 [nodes].
        missing_left: bool [nodes].
        by_code: The split tests a category code; bool [nodes].
        code_node: Splits by code, ascending; int32 [C].
        code: A code that goes left there, ascending in a split; int32 [C].
        cover: Weight of the training rows that reached a node, at least 0; float64
            [nodes].
        value: Number that a leaf adds, shrinkage and averaging included; 0 at splits;
            float64 [nodes, 1], or [nodes, outputs] where `output` is -1.
        missing: A number that stands for a missing value, besides NaN.
        zero_is_missing: Columns in which |x| <= 1e-35 is a missing value.
        codes_truncate: A code loses its fraction toward zero (-0.5 is code 0);
            otherwise downward (-0.5 is none).
        codes_exact: A code with a fraction is none, whatever `codes_truncate` says.
    """

    start: I32
    output: I32
    left: I32
    feature: I32
    threshold: F32
    missing_left: Bools
    by_code: Bools
    code_node: I32
    code: I32
    cover: F64
    value: F64
    missing: float | None = None
    zero_is_missing: tuple[int, ...] = ()
    codes_truncate: bool = False
    codes_exact: bool = False


class Linear(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """
    Hold coefficients, and the mapping from features to their columns.

    A column is `slope * u + offset`, where u is one feature's x, or 1 where x is the
    column's category and 0 elsewhere.

    Attributes:
        source: Feature from which each column is computed; int32 [J].
        slope: float64 [J].
        offset: float64 [J].
        by_category: u is 1 for a category; bool [J].
        category: float64 [J]; NaN where none.
        filled: The column where x is NaN; NaN where such a row has no answer; float64
            [J].
        mean: Reference point of the contributions; float64 [J].
        coefficient: float64 [outputs, J].
        from_mean: `mean` is the columns' mean over sample rows; otherwise it is 0,
            which is the training mean only if the column is standardised.
    """

    source: I32
    slope: F64
    offset: F64
    by_category: Bools
    category: F64
    filled: F64
    mean: F64
    coefficient: F64
    from_mean: bool = False


class Explanation(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """
    Hold a model as a sum over features, or the reason why it cannot be one.

    Attributes:
        features: Names of the F features, in order.
        classes: Labels of the K classes, in the order of the probabilities.
        link: From margins to probabilities: `logistic` of one margin, P(class 1);
            `softmax` of K margins; `identity` where K margins are probabilities.
        base: Start values of the margins (a linear model's intercept); float64
            [outputs].
        trees: The model, when it is one of trees.
        linear: The model, when it is linear.
        reason: Reason why there is neither; empty when there is one.
    """

    features: tuple[str, ...]
    classes: tuple[int | str, ...]
    link: Link = "identity"
    base: F64
    trees: Trees | None = None
    linear: Linear | None = None
    reason: str = ""

    @property
    def outputs(self) -> int:
        """Return the number of margins: 1, or K."""
        return 1 if self.link == "logistic" else len(self.classes)


def unexplained(
    reason: str, *, features: tuple[str, ...], classes: tuple[int | str, ...]
) -> Explanation:
    """Build an explanation that only states why a model's answers are not explained."""
    return Explanation(
        features=features,
        classes=classes,
        base=np.zeros(len(classes)),
        reason=reason,
    )


# Check that an explanation describes a model, because its file may be damaged.

_MOST_CODES = 1 << 24  # float32 holds every whole number up to here


def check(explanation: Explanation) -> None:
    """
    Raise RepositoryError, with an empty source, unless every array fits the others.

    A valid explanation can be evaluated for any rows: no index points outside an array,
    no path is endless, no number of a model is NaN or infinite.
    """
    classes, outputs = len(explanation.classes), explanation.outputs
    _require(classes >= 2, "classes", f"are {classes}; a decision needs two")
    _require(
        classes == 2 or explanation.link != "logistic",
        "link",
        f"is logistic for {classes} classes",
    )
    _require(bool(explanation.features), "features", "are none")
    _shape(explanation.base, (outputs,), "base")
    _finite(explanation.base, "base")
    parts = [explanation.trees, explanation.linear, explanation.reason or None]
    _require(
        sum(one is not None for one in parts) == 1,
        "reason",
        "stands next to a model, or is missing where there is none",
    )
    columns = len(explanation.features)
    if explanation.trees is not None:
        _check_structure(explanation.trees, columns=columns)
        _check_numbers(explanation.trees, columns=columns, outputs=outputs)
    if explanation.linear is not None:
        _check_linear(explanation.linear, columns=columns, outputs=outputs)


def _check_structure(trees: Trees, *, columns: int) -> None:
    """Check that every node but a root is the child of one earlier node of its tree."""
    nodes, count = len(trees.left), len(trees.output)
    for name in ("left", "feature", "threshold", "missing_left", "by_code", "cover"):
        _shape(getattr(trees, name), (nodes,), name)
    start = trees.start.astype(np.int64)
    _shape(start, (count + 1,), "start")
    _require(count > 0, "start", "there are no trees")
    _require(
        start[0] == 0 and start[-1] == nodes and bool((np.diff(start) > 0).all()),
        "start",
        f"does not ascend from 0 to {nodes}",
    )
    left = trees.left.astype(np.int64)
    splits = np.flatnonzero(left != -1)
    first = left[splits]
    end = start[np.searchsorted(start, splits, side="right")]
    _require(
        bool(((first > splits) & (first + 1 < end)).all()),
        "left",
        "leads out of a tree, or back",
    )
    inner = np.ones(nodes, dtype=bool)
    inner[start[:-1]] = False
    children = np.sort(np.concatenate([first, first + 1]))
    _require(
        np.array_equal(children, np.flatnonzero(inner)),
        "left",
        "leaves a node out, or reaches it twice",
    )
    _require(
        bool(((trees.feature >= 0) == (left >= 0)).all())
        and bool((trees.feature >= -1).all())
        and bool((trees.feature < columns).all()),
        "feature",
        f"is none of the {columns} where a split is, or not -1 at a leaf",
    )


def _check_numbers(trees: Trees, *, columns: int, outputs: int) -> None:
    nodes, several = len(trees.left), bool((trees.output == -1).any())
    if several:
        _require(bool((trees.output == -1).all()), "output", "is -1 for some trees")
        _require(outputs > 1, "output", "is -1 where there is one margin")
    else:
        inside = (trees.output >= 0) & (trees.output < outputs)
        _require(bool(inside.all()), "output", f"is none of the {outputs} margins")
    _shape(trees.value, (nodes, outputs if several else 1), "value")
    _finite(trees.value, "value")
    _finite(trees.cover, "cover")
    _require(bool((trees.cover >= 0).all()), "cover", "is negative")
    _require(not np.isnan(trees.threshold).any(), "threshold", "is NaN")
    _require(not (trees.by_code & (trees.left < 0)).any(), "by_code", "is set at leaf")
    _shape(trees.code, (len(trees.code_node),), "code")
    at = trees.code_node.astype(np.int64)
    _require(
        bool(((at >= 0) & (at < nodes)).all()) and bool(trees.by_code[at].all()),
        "code_node",
        "is no split by code",
    )
    _require(
        bool(((trees.code >= 0) & (trees.code < _MOST_CODES)).all())
        and bool((np.diff(at * _MOST_CODES + trees.code) > 0).all()),
        "code",
        "is negative, too large, or out of order",
    )
    _require(
        all(0 <= one < columns for one in trees.zero_is_missing),
        "zero_is_missing",
        f"is none of the {columns} features",
    )


def _check_linear(linear: Linear, *, columns: int, outputs: int) -> None:
    width = len(linear.source)
    for name in ("source", "slope", "offset", "by_category", "filled", "mean"):
        _shape(getattr(linear, name), (width,), name)
    _shape(linear.category, (width,), "category")
    _shape(linear.coefficient, (outputs, width), "coefficient")
    for name in ("slope", "offset", "mean", "coefficient"):
        _finite(getattr(linear, name), name)
    inside = (linear.source >= 0) & (linear.source < columns)
    _require(bool(inside.all()), "source", f"is none of the {columns} features")


def _shape(array: Any, shape: tuple[int, ...], where: str) -> None:
    _require(
        array.shape == shape, where, f"is {list(array.shape)}; needed is {list(shape)}"
    )


def _finite(array: Any, where: str) -> None:
    _require(bool(np.isfinite(array).all()), where, "is not finite")


def _require(holds: bool, where: str, problem: str) -> None:
    if not holds:
        raise RepositoryError("", problem, where=where)


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
    with os_errors(RepositoryError, path, "cannot be read"):
        return path.read_bytes()


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
