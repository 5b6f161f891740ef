"""Detect a file's format from its content; its name proves nothing."""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Literal

from tollgate.errors import InputError

# "plain" is the transfer format for a model of another environment; no file has it.
Format = Literal["xgboost", "lightgbm", "pickle", "onnx", "plain"]

LARGEST_BYTES = 1 << 30
_HEAD_BYTES = 1 << 16
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x04\x22\x4d\x18")
_ZLIB = (b"x\x01", b"x\x5e", b"x\x9c", b"x\xda")
_OLD_XGBOOST = (b"gbtree", b"gblinear", b"binary:", b"multi:", b"reg:")
_IMPORTING = {"GLOBAL", "INST", "STACK_GLOBAL", "REDUCE"}


def format_of(path: Path) -> Format:
    """
    Detect the format of a model file.

    Compressed files count as pickles: joblib writes those, and what is inside cannot
    be known without unpacking it.

    Raises:
        InputError: The file is missing, empty, too large or of an unsupported format.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror}") from error
    if not size:
        raise InputError(path, "is empty")
    if size > LARGEST_BYTES:
        raise InputError(
            path, f"has {size:,} bytes; at most {LARGEST_BYTES:,} are read"
        )
    if head.startswith((*_COMPRESSED, *_ZLIB)) or _is_pickle(head):
        return "pickle"
    if head.startswith((b"tree\n", b"tree\r\n")):
        return "lightgbm"
    if head.lstrip()[:1] == b"{":
        if b'"tree_structure"' in head or b'"num_tree_per_iteration"' in head:
            raise InputError(
                path, "is LightGBM's JSON dump, which cannot be loaded; save_model it"
            )
        return "xgboost"
    if head.startswith(b"CBM1"):
        raise InputError(
            path, "is a CatBoost model; save it as ONNX there, then adopt that"
        )
    if head.startswith(b"binf") or any(word in head[:1024] for word in _OLD_XGBOOST):
        if path.suffix == ".onnx":
            return "onnx"
        raise InputError(
            path,
            "is in XGBoost's old binary format, which xgboost 3 does not read; save "
            "it as JSON with the version that wrote it",
        )
    # A model starts with its IR version: field 1, a number below 128.
    if path.suffix == ".onnx" or (head[:1] == b"\x08" and len(head) > 8):
        return "onnx"
    raise InputError(
        path,
        "is no model that is read: XGBoost JSON or UBJ, LightGBM text, ONNX, or a "
        "pickle",
    )


def _is_pickle(head: bytes) -> bool:
    """Read a pickle's instructions unexecuted; text pickles have no signature."""
    if head[:1] == b"\x80" and head[1:2] and 2 <= head[1] <= 5:
        return True
    seen = set()
    try:
        for number, (instruction, _, _) in enumerate(pickletools.genops(head)):
            seen.add(instruction.name)
            if number > 40 or instruction.name == "STOP":
                break
    except (ValueError, IndexError, UnicodeDecodeError):
        if len(seen) < 4:
            return False
    return bool(seen & _IMPORTING)
