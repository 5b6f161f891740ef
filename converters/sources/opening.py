"""Open a model file of any supported format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from converters.model import TrainedModel
from converters.sources.files.formats import format_of
from converters.sources.process import FileModel
from converters.sources.training_environment import EnvironmentModel
from tollgate.errors import ArgumentError


@contextmanager
def open_source(
    path: Path,
    *,
    trust_pickle: bool = False,
    missing: float | None = None,
    columns: int | None = None,
    python: Path | None = None,
) -> Iterator[TrainedModel]:
    """
    Open a model file; a child process reads formats that may run code or crash.

    Args:
        path: The file.
        trust_pickle: True to load a pickle, which runs the code in it.
        missing: Number that stands for a missing value in XGBoost's files, which do not
            store it.
        columns: Number of features, for ONNX files that do not say.
        python: Python of the environment that trained it, which then reads the model
            and predicts; None for our own.

    Raises:
        InputError: It is missing, damaged, of an unknown format, or a pickle that is
            not trusted.
        ConversionError: Its model would not convert faithfully.
    """
    form = format_of(path)
    if form == "pickle" and not trust_pickle:
        raise ArgumentError(
            "trust_pickle",
            f"{path} is a pickle: loading it runs whatever code is in it; a pickle "
            "that you trust is loaded in a process of its own",
        )
    if python is not None:
        if form == "onnx":
            raise ArgumentError("python", f"{path} is ONNX, which needs no Python")
        with EnvironmentModel(
            path, python=python, form=form, missing=missing
        ) as elsewhere:
            yield elsewhere
        return
    with FileModel(path, form=form, missing=missing, columns=columns) as child:
        child.facts  # noqa: B018  (the file is read now, not later)
        yield child
