"""
Read one model's file in a process of its own and answer questions about it.

Started by `converters.sources.process`. A pickle may run any code and a damaged file
may crash a native library; here that costs this process alone. Requests come on
standard input, answers go to what was standard output; whatever the libraries print
goes to standard error.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import warnings
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from converters.model import Facts, Probes, TrainedModel
from converters.sources.formats import Format
from tollgate.errors import ConversionError, TollgateError

LENGTH = struct.Struct("<Q")


class Block(msgspec.Struct, frozen=True):
    """An array of float32, float64 or text, as bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: Any) -> Block:
        """Wrap an array."""
        return cls(array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes())

    def array(self) -> Any:
        """Return the array; only numbers and text, never objects."""
        if np.dtype(self.dtype).kind not in "fU":
            raise ConversionError(f"an array of {self.dtype} is not expected")
        return np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)


class Request(msgspec.Struct, frozen=True):
    """What to do: `facts`, `convert`, `predict` rows, `probes` from samples."""

    do: str
    rows: Block | None = None


class Reply(msgspec.Struct, frozen=True):
    """The answer, or in one line why there is none."""

    problem: str = ""
    facts: Facts | None = None
    model: bytes = b""
    first: Block | None = None
    second: Block | None = None


def send(stream: IO[bytes], message: msgspec.Struct) -> None:
    """Write one message."""
    body = msgspec.msgpack.encode(message)
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes:
    """Read one message; empty at the end of the stream."""
    size = stream.read(LENGTH.size)
    if len(size) < LENGTH.size:
        return b""
    body = stream.read(LENGTH.unpack(size)[0])
    return body


def open_model(path: Path, *, form: Format, missing: float | None) -> TrainedModel:
    """Read a file with the library of its format."""
    if form == "xgboost":
        from converters.sources.xgboost import read_xgboost

        return read_xgboost(path, missing=missing)
    if form == "lightgbm":
        from converters.sources.lightgbm import read_lightgbm

        return read_lightgbm(path)
    import joblib

    return model_of(joblib.load(path), missing=missing)


def model_of(trained: Any, *, missing: float | None = None) -> TrainedModel:
    """
    Wrap a trained model in memory.

    Raises:
        ConversionError: It is none, or of a kind that would not convert faithfully.
    """
    origin = type(trained).__module__.partition(".")[0]
    if origin == "xgboost":
        from converters.sources.xgboost import XGBoostModel

        return XGBoostModel(trained, missing=missing)
    if origin == "lightgbm":
        from converters.sources.lightgbm import LightGbmModel

        return LightGbmModel(trained)
    from converters.sources.sklearn import SklearnModel

    return SklearnModel(trained)


def answer(model: TrainedModel, request: Request) -> Reply:
    """Do what is asked."""
    rows = None if request.rows is None else request.rows.array()
    if request.do == "convert":
        return Reply(model=model.convert())
    if request.do == "predict" and rows is not None:
        return Reply(first=Block.of(model.predict(rows)))
    if request.do == "probes":
        found: Probes = model.probes(rows)
        return Reply(first=Block.of(found.rows), second=Block.of(found.kind))
    return Reply(facts=model.facts)


def main() -> None:
    """Serve until standard input ends."""
    warnings.simplefilter("ignore")
    path, form, missing = sys.argv[1:4]
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    model: TrainedModel | None = None
    while body := receive(requests):
        try:
            if model is None:
                value = None if missing == "" else float(missing)
                model = open_model(
                    Path(path), form=msgspec.convert(form, Format), missing=value
                )
            reply = answer(model, msgspec.msgpack.decode(body, type=Request))
        except TollgateError as error:
            reply = Reply(problem=" ".join(str(error).split()))
        except Exception as error:  # noqa: BLE001  (the edge of this process)
            # xgboost begins with the time and its source file, and ends in a stack.
            said = re.sub(r"^\[[\d:]+\] \S+ ", "", " ".join(str(error).split()))
            said = said.partition(" Stack trace:")[0][:300]
            reply = Reply(problem=f"cannot be used: {type(error).__name__}: {said}")
        send(replies, reply)


if __name__ == "__main__":
    main()
