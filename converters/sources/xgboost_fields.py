"""Read one field of a decoded model file; an error names the field's path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


class BadField(Exception):
    """
    A field of a model file has an invalid value.

    Args:
        path: Path of the field.
        problem: Description of the error.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


def object_at(
    holder: Mapping[str, Any],
    name: str,
    *,
    at: str = "",
    default: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return an object; raise BadField if the field is none."""
    found = holder.get(name, default)
    if not isinstance(found, dict):
        raise BadField(_path(at, name), _not(holder, name, "an object"))
    return found


def text_at(holder: Mapping[str, Any], name: str, *, at: str) -> str:
    """Return a text; raise BadField if the field is none."""
    found = holder.get(name)
    if not isinstance(found, str):
        raise BadField(_path(at, name), _not(holder, name, "a text"))
    return found


def count_at(
    holder: Mapping[str, Any], name: str, *, at: str, default: int | None = None
) -> int:
    """Return a count, which XGBoost writes as a text of digits."""
    if default is not None and name not in holder:
        return default
    found = holder.get(name)
    if not (isinstance(found, str) and found.isascii() and found.isdigit()):
        raise BadField(_path(at, name), _not(holder, name, "a text of digits"))
    if len(found) > 9:
        raise BadField(_path(at, name), f"is {found}, more than any model has")
    return int(found)


def whole_at(
    holder: Mapping[str, Any],
    name: str,
    *,
    at: str,
    size: int | None = None,
    low: int | None = None,
    high: int | None = None,
) -> npt.NDArray[np.int64]:
    """Return a list of whole numbers from `low` to below `high`."""
    found = _array(holder, name, at=at, size=size, kinds="iub")
    found = found.astype(np.int64)
    outside = np.zeros(len(found), bool)
    if low is not None:
        outside |= found < low
    if high is not None:
        outside |= found >= high
    if outside.any():
        at_entry = int(outside.argmax())
        raise BadField(
            f"{_path(at, name)}[{at_entry}]", f"is {found[at_entry]}, out of range"
        )
    return found


def numbers_at(
    holder: Mapping[str, Any],
    name: str,
    *,
    at: str,
    size: int | None = None,
    finite: bool = True,
) -> npt.NDArray[np.float32]:
    """Return a list of numbers as float32, as XGBoost stores them."""
    found = _array(holder, name, at=at, size=size, kinds="iuf")
    with np.errstate(over="ignore"):
        single = found.astype(np.float32)
    odd = ~np.isfinite(single)
    if finite and odd.any():
        at_entry = int(odd.argmax())
        raise BadField(
            f"{_path(at, name)}[{at_entry}]",
            f"is {found[at_entry]}, no finite float32",
        )
    return single


def _array(
    holder: Mapping[str, Any], name: str, *, at: str, size: int | None, kinds: str
) -> npt.NDArray[Any]:
    value = holder.get(name)
    if not isinstance(value, (list, np.ndarray)):
        raise BadField(_path(at, name), _not(holder, name, "a list of numbers"))
    for number, one in enumerate(value if isinstance(value, list) else ()):
        if isinstance(one, (str, dict, list)) or one is None:
            raise BadField(f"{_path(at, name)}[{number}]", f"is {one!r}, no number")
    found = np.asarray(value)
    if not len(found):
        found = found.astype(np.int64)
    if found.ndim != 1 or found.dtype.kind not in kinds:
        raise BadField(_path(at, name), "has entries of another type")
    if size is not None and len(found) != size:
        raise BadField(_path(at, name), f"has {len(found)} entries; needed are {size}")
    return found


def _path(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _not(holder: Mapping[str, Any], name: str, wanted: str) -> str:
    if name not in holder:
        return f"is missing; needed is {wanted}"
    text = repr(holder[name])
    return f"is {text if len(text) < 40 else type(holder[name]).__name__}, not {wanted}"
