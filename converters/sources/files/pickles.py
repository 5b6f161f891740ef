"""Check the boosters inside a pickle before their library reads them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from tollgate.errors import ConversionError


@contextmanager
def checked_boosters() -> Iterator[None]:
    """
    Check every booster unpickled inside the context by the rules of its file format.

    Raises:
        ConversionError: A booster is newer than supported, has a field that is not
            read, or its library misreads it.
    """
    restored = []
    for library, replace in (
        ("xgboost", _xgboost_state),
        ("lightgbm", _lightgbm_state),
    ):
        try:
            module = importlib.import_module(library)
        except Exception:  # noqa: BLE001  (no pickle can bring its booster then)
            continue
        original = module.Booster.__setstate__
        restored.append((module.Booster, original))
        module.Booster.__setstate__ = replace(original)
    try:
        yield
    finally:
        for kind, original in restored:
            kind.__setstate__ = original


def refuse_newer(wrote: Collection[str]) -> None:
    """
    Refuse estimators of a scikit-learn that is newer than the installed one.

    Args:
        wrote: Versions that the pickle names, other than the installed one.

    Raises:
        ConversionError: One is newer.
    """
    import sklearn

    for version in sorted(wrote):
        if _release(version) > _release(sklearn.__version__):
            raise ConversionError(
                f"was written by scikit-learn {version}, and {sklearn.__version__} is "
                "installed, which cannot know what changed since: name the "
                f"Python of an environment that has {version}"
            )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", version)[:2])


def _xgboost_state(original: Any) -> Any:
    """Return a `__setstate__` that reads the model inside the pickled bytes."""

    def set_state(self: Any, state: dict[str, Any]) -> None:
        from converters.sources.files.xgboost_file import decode, encode
        from converters.sources.xgboost import checked_booster

        if state.get("handle") is None:
            original(self, state)
            return
        document = decode(bytes(state["handle"]))
        # A pickle contains the model and its training parameters.
        model = document.get("Model", document)
        if not isinstance(model, dict):
            raise ConversionError("the pickled booster has no model")
        checked, _ = checked_booster(encode(model))
        original(self, state | {"handle": None})
        self.handle, checked.handle = checked.handle, None

    return set_state


def _lightgbm_state(original: Any) -> Any:
    """Return a `__setstate__` that reads the model's text first."""

    def set_state(self: Any, state: dict[str, Any]) -> None:
        from converters.sources.files.lightgbm_file import checked_text

        text = state.get("_handle", state.get("handle"))
        if isinstance(text, str):
            name = "_handle" if "_handle" in state else "handle"
            state = state | {name: checked_text(text)}
        original(self, state)

    return set_state
