"""
Read one model file in a separate process and answer requests about the model.

`converters.sources.opening` starts this module. A pickle may run any code and a damaged
file may crash a native library; here that affects only this process. Requests arrive on
standard input, and replies leave on what was standard output. Whatever the libraries
print goes to standard error.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from converters.model import (
    Facts,
    Probes,
    Pruning,
    TrainedModel,
    plain_classes,
    plain_parameters,
)
from converters.sources.described import DescribedModel
from converters.sources.files.formats import Format
from converters.sources.libraries import require_library
from converters.sources.wire import receive, send, take_streams
from tollgate.errors import ConversionError, TollgateError
from tollgate.explanation import encode_explanation


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
    """
    One request to the worker.

    It is `facts`, `convert`, `convert wide` (of float64 features), `explain`, `predict`
    rows, or `probes` from samples; with the complete model or a pruned one.
    """

    do: str
    rows: Block | None = None
    pruning: Pruning = Pruning()


class Reply(msgspec.Struct, frozen=True):
    """
    A reply, or the reason in one line why there is none.

    `newer` is set when a pickle could not be loaded because other versions of its
    libraries wrote it.
    """

    problem: str = ""
    newer: bool = False
    facts: Facts | None = None
    model: bytes = b""
    first: Block | None = None
    second: Block | None = None


def open_model(
    path: Path, *, form: Format, missing: float | None, columns: int | None = None
) -> TrainedModel:
    """Read a file with the library of its format."""
    if form == "onnx":
        from converters.sources.onnx import OnnxModel

        return OnnxModel(path, columns=columns)
    if form in ("xgboost", "lightgbm"):
        _leave_out_libraries()
        require_library(form)
    if form == "xgboost":
        from converters.sources.xgboost import read_xgboost

        return read_xgboost(path, missing=missing)
    if form == "lightgbm":
        from converters.sources.lightgbm import read_lightgbm

        return read_lightgbm(path)
    if form == "plain":
        return _read_plain(path)
    return _unpickled(path, missing=missing)


def _leave_out_libraries() -> None:
    """
    Let XGBoost and LightGBM work without scikit-learn and pandas in this process.

    They import them where they are installed, which takes a second or more, for
    estimators and tables that a booster does not need.
    """
    for name in ("sklearn", "pandas"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def _unpickled(path: Path, *, missing: float | None) -> TrainedModel:
    """Load a pickle; record which other scikit-learn wrote it."""
    import joblib
    from sklearn.exceptions import InconsistentVersionWarning

    from converters.sources.files.pickles import checked_boosters, refuse_newer

    with warnings.catch_warnings(record=True) as caught, checked_boosters():
        warnings.simplefilter("always", InconsistentVersionWarning)
        trained = joblib.load(path)
    wrote = {
        str(one.message.original_sklearn_version)
        for one in caught
        if isinstance(one.message, InconsistentVersionWarning)
    }
    refuse_newer(wrote)
    return model_of(trained, missing=missing, written_by=", ".join(sorted(wrote)))


def _read_plain(path: Path) -> TrainedModel:
    """
    Read a model that `environment_worker` wrote.

    Raises:
        ConversionError: Our libraries cannot load it, or it cannot be converted
            faithfully.
    """
    line, _, body = path.read_bytes().partition(b"\n")
    head: dict[str, Any] = json.loads(line)
    if head["library"] in ("xgboost", "lightgbm"):
        _leave_out_libraries()
    if head["library"] == "xgboost":
        from xgboost import Booster

        from converters.sources.xgboost import XGBoostModel

        booster = Booster()
        booster.load_model(bytearray(body))
        return _described(XGBoostModel(booster, missing=head["missing"]), head)
    if head["library"] == "lightgbm":
        import lightgbm

        from converters.sources.lightgbm import LightGbmModel

        found = lightgbm.Booster(model_str=body.decode())
        found.pandas_categorical = head["categories"]
        return _described(LightGbmModel(found), head)
    from converters.sources.plain_state import PlainStateError, from_bytes
    from converters.sources.sklearn import SklearnModel

    try:
        return SklearnModel(from_bytes(body))
    except PlainStateError as error:
        raise ConversionError(str(error)) from error


def _described(model: TrainedModel, head: dict[str, Any]) -> TrainedModel:
    """Set the classes and parameters of the classifier that a booster comes from."""
    classes = head.get("classes")
    facts = msgspec.structs.replace(
        model.facts,
        classes=model.facts.classes if classes is None else plain_classes(classes),
        parameters=plain_parameters(head["parameters"]),
    )
    return DescribedModel(model, facts)


def model_of(
    trained: Any, *, missing: float | None = None, written_by: str = ""
) -> TrainedModel:
    """
    Wrap a trained model in memory.

    Args:
        missing: Number that stands for a missing value, if the model does not say.
        written_by: Version of scikit-learn that wrote its file, if it is not this one.

    Raises:
        ConversionError: It is no model, or one that cannot be converted faithfully.
    """
    origin = type(trained).__module__.partition(".")[0]
    if origin == "xgboost":
        from converters.sources.xgboost import XGBoostModel

        return XGBoostModel(trained, missing=missing)
    if origin == "lightgbm":
        from converters.sources.lightgbm import LightGbmModel

        return LightGbmModel(trained)
    from converters.sources.sklearn import SklearnModel

    return SklearnModel(trained, written_by=written_by)


def answer(model: TrainedModel, request: Request) -> Reply:
    """Handle a request."""
    rows = None if request.rows is None else request.rows.array()
    if request.do in ("convert", "convert wide"):
        return Reply(model=model.convert(wide=request.do == "convert wide"))
    if request.do == "explain":
        return Reply(model=encode_explanation(model.explanation()))
    if request.do == "predict" and rows is not None:
        return Reply(first=Block.of(model.predict(rows)))
    if request.do == "probes":
        found: Probes = model.probes(rows)
        return Reply(first=Block.of(found.rows), second=Block.of(found.kind))
    return Reply(facts=model.facts)


def main() -> None:
    """Serve until standard input ends."""
    warnings.simplefilter("ignore")
    path, form, missing, columns = sys.argv[1:5]
    requests, replies = take_streams()
    model: TrainedModel | None = None
    pruned: dict[Pruning, TrainedModel] = {}
    while body := receive(requests):
        try:
            if model is None:
                value = None if missing == "" else float(missing)
                model = open_model(
                    Path(path),
                    form=msgspec.convert(form, Format),
                    missing=value,
                    columns=int(columns) or None,
                )
            request = msgspec.msgpack.decode(body, type=Request)
            chosen = request.pruning
            if chosen != Pruning() and chosen not in pruned:
                pruned = {chosen: model.pruned(trees=chosen.trees, depth=chosen.depth)}
            reply = answer(pruned.get(chosen, model), request)
        except TollgateError as error:
            message = " ".join(str(error).split())
            reply = Reply(problem=message.removeprefix(f"{path}: "))
        except Exception as error:  # noqa: BLE001  (the edge of this process)
            # An xgboost error starts with the time and its source file, and ends in a
            # stack trace.
            message = re.sub(r"^\[[\d:]+\] \S+ ", "", " ".join(str(error).split()))
            message = message.partition(" Stack trace:")[0][:300]
            reply = Reply(
                problem=f"cannot be used: {type(error).__name__}: {message}",
                newer=form == "pickle" and model is None,
            )
        send(replies, msgspec.msgpack.encode(reply))


if __name__ == "__main__":
    main()
