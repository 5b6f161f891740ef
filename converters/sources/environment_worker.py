"""
Serve a model in the environment that trained it; run as a script, by its path.

`opening` starts this script with the Python of that environment. It needs
NumPy and the model's own libraries, nothing of Tollgate's, and stays compatible with
Python 3.8. A message is a line of JSON followed by the bytes of an array or a file.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any


def _sibling_module(name: str) -> Any:
    """Import a module of this folder under a name that collides with no library."""
    path = Path(__file__).with_name(name + ".py")
    spec = importlib.util.spec_from_file_location("tollgate_" + name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Answers:
    """
    A loaded model, and the way to query it.

    Args:
        form: `pickle`, `xgboost` or `lightgbm`.
        missing: Number that stands for a missing value in an XGBoost file.
    """

    def __init__(self, path: str, form: str, *, missing: float | None) -> None:
        self.written_by = ""
        self._missing = float("nan") if missing is None else missing
        if form == "xgboost":
            import xgboost

            self.model: Any = xgboost.Booster()
            self.model.load_model(bytearray(Path(path).read_bytes()))
        elif form == "lightgbm":
            import lightgbm

            self.model = lightgbm.Booster(model_str=Path(path).read_text("utf-8"))
        else:
            self.model = self._unpickled(path)
            own = getattr(self.model, "missing", None)
            if missing is None and own is not None:
                self._missing = float(own)
        root = type(self.model).__module__.partition(".")[0]
        self.library = root if root in ("xgboost", "lightgbm") else "scikit-learn"
        if self.library == "scikit-learn":
            rows = _sibling_module("estimator_rows")
            self._rows = rows.EstimatorRows(
                self.model,
                getattr(self.model, "feature_names_in_", None),
                words=rows.words_of(self.model),
            )

    def _unpickled(self, path: str) -> Any:
        import joblib

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = joblib.load(path)
        wrote = {
            str(one.message.original_sklearn_version)
            for one in caught
            if hasattr(one.message, "original_sklearn_version")
        }
        self.written_by = ", ".join(sorted(wrote))
        return found

    def facts(self) -> dict[str, Any]:
        """Return the model's facts and the libraries that run it."""
        names = ("numpy", "sklearn", "xgboost", "lightgbm")
        return {
            "library": self.library,
            "written_by": self.written_by,
            "python": "{}.{}.{}".format(*sys.version_info),
            "versions": {
                name: str(sys.modules[name].__version__)
                for name in names
                if name in sys.modules
            },
        }

    def fitted(self) -> tuple[dict[str, Any], bytes]:
        """Return the trained state: the library's own file, or plain data."""
        parameters = {}
        if hasattr(self.model, "get_params") and self.library != "scikit-learn":
            parameters = {
                name: value
                for name, value in self.model.get_params().items()
                if type(value) in (bool, int, float, str)
            }
        head: dict[str, Any] = {"library": self.library, "parameters": parameters}
        if self.library == "xgboost":
            booster = self._booster("get_booster")
            head["missing"] = self._missing
            return head, bytes(booster.save_raw("json"))
        if self.library == "lightgbm":
            booster = self._booster("booster_")
            classes = getattr(self.model, "classes_", None)
            head["classes"] = None if classes is None else classes.tolist()
            head["categories"] = booster.pandas_categorical
            return head, booster.model_to_string().encode()
        return head, _sibling_module("plain_state").to_bytes(self.model)

    def _booster(self, name: str) -> Any:
        found = getattr(self.model, name, self.model)
        return found() if callable(found) else found

    def predict(self, rows: Any) -> Any:
        """Return the answers to [N, F]; float64 [N, K], K = 1 for a number."""
        import numpy as np

        if self.library == "lightgbm":
            booster = self._booster("booster_")
            found = np.asarray(booster.predict(rows, num_threads=1))
            if (
                found.ndim == 1
                and "\nobjective=binary" not in booster.model_to_string()
            ):
                found = found[:, None]
        elif self.library == "xgboost":
            found = self._predict_xgboost(rows)
        else:
            found = self._rows.predict(rows)
        if found.ndim == 1:
            found = np.stack([1 - found, found], axis=1)
        return np.ascontiguousarray(found, dtype=np.float64)

    def _predict_xgboost(self, rows: Any) -> Any:
        import numpy as np

        if hasattr(self.model, "predict_proba"):
            return np.asarray(self.model.predict_proba(rows), dtype=np.float64)
        booster = self._booster("get_booster")
        booster.feature_names = None
        best = booster.attr("best_iteration")
        margin = np.asarray(
            booster.inplace_predict(
                rows,
                missing=self._missing,
                predict_type="margin",
                iteration_range=(0, 0 if best is None else int(best) + 1),
            ),
            dtype=np.float64,
        )
        config = json.loads(booster.save_config())
        objective = config["learner"]["objective"]["name"]
        if objective in ("count:poisson", "reg:gamma", "reg:tweedie"):
            return np.exp(margin)[:, None]
        if margin.ndim == 1 and not objective.endswith(":logistic"):
            return margin[:, None]
        if margin.ndim == 1:
            return 1 / (1 + np.exp(-margin))
        power = np.exp(margin - margin.max(axis=1, keepdims=True))
        return power / power.sum(axis=1, keepdims=True)


def answer(model: Answers, head: dict[str, Any], body: bytes) -> bytes:
    """Handle a request."""
    import numpy as np

    if head["do"] == "fitted":
        return packed(*model.fitted())
    if head["do"] == "predict":
        rows = np.frombuffer(body, dtype=head["dtype"]).reshape(head["shape"])
        found = model.predict(rows.copy())
        return packed({"shape": found.shape}, found.tobytes())
    return packed(model.facts())


def packed(head: dict[str, Any], body: bytes = b"") -> bytes:
    """Encode a message."""
    return json.dumps(head).encode() + b"\n" + body


def main() -> None:
    """Serve until standard input ends."""
    warnings.simplefilter("ignore")
    wire = _sibling_module("wire")
    path, form, missing = sys.argv[1:4]
    requests, replies = wire.take_streams()
    model = None
    while True:
        message = wire.receive(requests)
        if not message:
            return
        line, _, body = message.partition(b"\n")
        try:
            if model is None:
                value = None if missing == "" else float(missing)
                model = Answers(path, form, missing=value)
            reply = answer(model, json.loads(line), body)
        except ModuleNotFoundError as error:
            reply = packed({"lacks": error.name or str(error)})
        except Exception as error:  # noqa: BLE001  (the edge of this process)
            problem = " ".join(str(error).split())[:300]
            kind = type(error).__name__
            plain = kind in ("PlainStateError", "WordsError")
            reply = packed({"problem": problem if plain else f"{kind}: {problem}"})
        wire.send(replies, reply)


if __name__ == "__main__":
    main()
