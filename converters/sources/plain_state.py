"""
Write a fitted scikit-learn model as plain data, and rebuild it elsewhere.

A pickle names code, and arrays of NumPy 2 name modules that NumPy 1 lacks. Plain data
holds numbers, texts and the names of scikit-learn's own classes; rebuilding the model
runs only the code of those classes. The environments of other Pythons run this file as
well. It needs only NumPy, and stays compatible with Python 3.8.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np

_format: Any = np.lib.format
_SCALARS = (bool, int, float, str, type(None))
# Attributes of a search that record its trials; no prediction needs them.
_UNUSED = ("cv_results_", "_sklearn_version")


class PlainStateError(ValueError):
    """A model contains something that is no plain data; the text names it."""


def to_bytes(value: Any) -> bytes:
    """
    Write a fitted model.

    Raises:
        PlainStateError: It contains code written by its user, or an unknown type.
    """
    writer = _Writer()
    try:
        head = writer.write(value)
    except RecursionError as error:
        raise PlainStateError("the model holds itself") from error
    sizes = [len(one) for one in writer.buffers]
    line = json.dumps({"value": head, "sizes": sizes}).encode()
    return line + b"\n" + b"".join(writer.buffers)


def from_bytes(body: bytes) -> Any:
    """
    Rebuild a fitted model.

    Raises:
        PlainStateError: This scikit-learn lacks a class, or the class does not accept
            the state.
    """
    line, _, rest = body.partition(b"\n")
    head = json.loads(line)
    buffers, start = [], 0
    for size in head["sizes"]:
        buffers.append(rest[start : start + size])
        start += size
    return _Reader(buffers).read(head["value"])


class _Writer:
    """Convert values to JSON; arrays go into buffers."""

    def __init__(self) -> None:
        self.buffers: list[bytes] = []

    def write(self, value: Any) -> Any:
        """Convert a value to JSON."""
        if type(value) in _SCALARS:
            return value
        if isinstance(value, np.ma.MaskedArray):
            return None
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value)
        if isinstance(value, bytes):
            return {"bytes": self._keep(value)}
        if isinstance(value, dict):
            pairs = [(k, v) for k, v in value.items() if k not in _UNUSED]
            kind = type(value).__name__
            if kind not in ("dict", "Bunch", "OrderedDict", "defaultdict"):
                raise PlainStateError(f"a {kind} is not carried over")
            return {"dict": [[self.write(k), self.write(v)] for k, v in pairs]}
        for name, sequence in (("list", list), ("tuple", tuple), ("set", set)):
            if type(value) is sequence:
                return {name: [self.write(one) for one in value]}
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return {"slice": [self.write(one) for one in parts]}
        if isinstance(value, np.dtype):
            return {"dtype": _format.dtype_to_descr(value)}
        return self._object(value)

    def _keep(self, content: bytes) -> int:
        self.buffers.append(content)
        return len(self.buffers) - 1

    def _array(self, value: Any) -> Any:
        array = np.asarray(value)
        if array.dtype.kind in "OT":  # T: texts of any length, since NumPy 2
            flat = [self.write(one) for one in array.ravel().tolist()]
            return {"objects": flat, "shape": array.shape}
        fortran = array.ndim > 1 and array.flags.f_contiguous
        return {
            "array": self._keep(array.tobytes("F" if fortran else "C")),
            "dtype": _format.dtype_to_descr(array.dtype),
            "shape": array.shape,
            "order": "F" if fortran else "C",
            "scalar": isinstance(value, np.generic),
        }

    def _object(self, value: Any) -> Any:
        kind = type(value)
        module, name = kind.__module__, kind.__qualname__
        if module.startswith("numpy.random"):
            return None  # no model draws random numbers to predict
        named = isinstance(value, type) or hasattr(value, "__name__")
        if named and callable(value) and not hasattr(type(value), "fit"):
            return self._named(value)
        if module.startswith("pandas.") and hasattr(value, "tolist"):
            return {"list": [self.write(one) for one in value.tolist()]}
        if not module.startswith("sklearn."):
            raise PlainStateError(f"a {module}.{name} is not carried over")
        found: dict[str, Any] = {"class": [module, name]}
        if name == "Tree":
            found["new"] = [self.write(one) for one in value.__reduce__()[1]]
            found["state"] = self.write(value.__getstate__())
        elif hasattr(value, "__dict__"):
            state = value.__getstate__() if hasattr(value, "__getstate__") else None
            state = state if isinstance(state, dict) else vars(value)
            found["state"] = self.write(state)
        return found

    def _named(self, value: Any) -> Any:
        module = getattr(value, "__module__", None) or type(value).__module__
        name = getattr(value, "__qualname__", value.__name__)
        root = module.partition(".")[0]
        if root == "numpy":
            return {"numpy": value.__name__}
        if root in ("sklearn", "builtins") and "<" not in name:
            return {"named": [module, name]}
        raise PlainStateError(f"the function {module}.{name} is not carried over")


class _Reader:
    """Rebuild values from JSON and buffers."""

    def __init__(self, buffers: list[bytes]) -> None:
        self._buffers = buffers

    def read(self, value: Any) -> Any:
        """Return the rebuilt value."""
        if not isinstance(value, dict):
            return value
        (kind, inner), *_ = value.items()
        if kind == "array":
            return self._array(value)
        if kind == "objects":
            found = np.empty(len(inner), dtype=object)
            found[:] = [self.read(one) for one in inner]
            return found.reshape(value["shape"])
        if kind == "bytes":
            return self._buffers[inner]
        if kind == "dict":
            return {self.read(k): self.read(v) for k, v in inner}
        if kind == "dtype":
            return _format.descr_to_dtype(_descr(inner))
        if kind == "numpy":
            return getattr(np, inner)
        if kind == "named":
            return _named(*inner)
        if kind == "class":
            return self._object(value)
        kinds = {"list": list, "tuple": tuple, "set": set}
        parts = [self.read(one) for one in inner]
        return slice(*parts) if kind == "slice" else kinds[kind](parts)

    def _array(self, value: dict[str, Any]) -> Any:
        dtype = _format.descr_to_dtype(_descr(value["dtype"]))
        flat = np.frombuffer(self._buffers[value["array"]], dtype=dtype).copy()
        found = flat.reshape(value["shape"], order=value["order"])
        return found[()] if value["scalar"] else found

    def _object(self, value: dict[str, Any]) -> Any:
        cls = _named(*value["class"])
        name = value["class"][1]
        try:
            if "new" in value:
                found = cls(*[self.read(one) for one in value["new"]])
                found.__setstate__(_tree_state(self.read(value["state"])))
                return found
            if "state" not in value:
                return cls()
            found = cls.__new__(cls)
            state = self.read(value["state"])
            if hasattr(found, "__setstate__"):
                found.__setstate__(state)
            else:
                found.__dict__.update(state)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            message = str(error).splitlines()[0]
            raise PlainStateError(
                f"this scikit-learn does not take the {name}: {message}"
            ) from error
        return found


def _descr(value: Any) -> Any:
    """Convert the lists that JSON made of a structured type to tuples."""
    if isinstance(value, str):
        return value
    return [
        tuple(
            _descr(one) if isinstance(one, list) and at == 1 else one
            for at, one in enumerate(field)
        )
        for field in value
    ]


def _named(module: str, name: str) -> Any:
    """Return a class or function of scikit-learn, or a builtin type, by its name."""
    root = module.partition(".")[0]
    if root not in ("sklearn", "builtins"):
        raise PlainStateError(f"{module}.{name} is not carried over")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise PlainStateError(
            f"{module}.{name} is not known to the scikit-learn that converts"
        ) from error
    if root == "builtins" and name not in ("bool", "int", "float", "str", "object"):
        raise PlainStateError(f"{module}.{name} is not carried over")
    return found


def _tree_state(state: dict[str, Any]) -> dict[str, Any]:
    """Add the fields to a tree's nodes that this scikit-learn has."""
    from sklearn.tree._tree import NODE_DTYPE

    nodes = state["nodes"]
    for name in nodes.dtype.names:
        if name not in NODE_DTYPE.names and nodes[name].any():
            raise PlainStateError(
                f"its trees use {name!r}, which the scikit-learn that converts lacks"
            )
    found = np.zeros(len(nodes), dtype=NODE_DTYPE)
    for name in NODE_DTYPE.names:
        if name in nodes.dtype.names:
            found[name] = nodes[name]
    return {**state, "nodes": found}
