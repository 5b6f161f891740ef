"""Define the interface of a source model, whatever framework trained it."""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.explanation import Explanation
from tollgate.repository.models.artifact_file import Parameter as Parameter
from tollgate.repository.models.artifact_file import Vocabulary as Vocabulary
from tollgate.repository.models.artifact_file import Words as Words

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]


class AnomalyScore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Form of the raw score of an outlier detector; higher is more anomalous.

    Attributes:
        scale: `log` for an error or a distance, which is at least 0 and has no limit;
            else `linear`.
        most: Highest score that is possible; of `log`, more than any row gets.
    """

    scale: Literal["linear", "log"]
    most: float


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Facts about a trained model.

    Attributes:
        framework: Library that trained it.
        version: Version of the library that reads it.
        objective: Training objective.
        classes: Class labels, in the order of the probabilities.
        columns: Number of features.
        names: Names of the features, where the model knows them.
        trees: Number of trees in use, after early stopping; 0 for other models.
        parameters: Parameters that were set.
        converter: Library that writes the graph, with its version.
        categories: Column -> the categories it knows; columns of categories only.
        written_by: Version of the library that wrote the file, if the one that reads it
            does not guarantee the same predictions; otherwise empty.
        unplaced: Words of all category columns, in the order of these columns, where
            the file does not say which columns they are.
        wide: True if the model distinguishes float64 numbers that are equal in float32.
        number: True if its only answer is a number, in a unit of its own.
        ranks: True if it was trained to order candidates: the number is a relevance.
        anomaly: Form of the raw score of an outlier detector, its only answer, that is
            not calibrated; None for other models.
    """

    framework: str
    version: str
    objective: str
    classes: tuple[int | str, ...]
    columns: int
    names: tuple[str, ...] | None
    trees: int
    parameters: dict[str, Parameter]
    converter: str
    categories: dict[int, Vocabulary] = {}
    written_by: str = ""
    unplaced: tuple[Words, ...] = ()
    wide: bool = False
    anomaly: AnomalyScore | None = None
    number: bool = False
    ranks: bool = False

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the features; f0, f1, ... where the model knows none."""
        return self.names or tuple(f"f{number}" for number in range(self.columns))


class Probes(msgspec.Struct, frozen=True, eq=False):
    """
    Rows for comparing two models, and the reason for each.

    Args:
        rows: float32 [N, F].
        kind: `sample`, `split`, `boundary`, `category` or `special`; str [N].
    """

    rows: F32
    kind: npt.NDArray[np.str_]


class Pruning(msgspec.Struct, frozen=True):
    """
    Limits of a model's trees; None keeps all.

    Attributes:
        trees: Maximum number of trees, in whole rounds where a model is boosted.
        depth: Maximum number of splits on a path.
    """

    trees: int | None = None
    depth: int | None = None


class TrainedModel(Protocol):
    """A trained model that can predict and be converted."""

    @property
    def facts(self) -> Facts:
        """Return the facts about it."""

    def predict(self, rows: Floats) -> F64:
        """
        Return the probabilities of rows [N, F] as float64 [N, K].

        K is 1 for a model that answers a number or a raw score. A row that the
        framework refuses gets NaN. float32 and float64 are passed on unchanged: not
        every framework predicts the same for both.
        """

    def convert(self, *, wide: bool = False) -> bytes:
        """
        Return an ONNX model from `features` [N, F] to `probabilities` [N, K].

        The features are float64 where `wide`, else float32.
        """

    def probes(self, samples: F32 | None) -> Probes:
        """Return sample rows (generated if None), rows around every split, extremes."""

    def explanation(self) -> Explanation:
        """Return its additive explanation, or the reason why there is none."""

    def pruned(self, *, trees: int | None, depth: int | None) -> TrainedModel:
        """
        Return a copy with at most so many trees, and splits on a path.

        None keeps all. Raises ConversionError where there are none to remove.
        """


def plain_classes(found: npt.ArrayLike) -> tuple[int | str, ...]:
    """Convert class labels to JSON values: False and 0.0 become 0, 1.0 becomes 1."""
    return tuple(
        int(one)
        if isinstance(one, (bool, int, float)) and one == int(one)
        else str(one)
        for one in np.asarray(found).tolist()
    )


def plain_parameters(found: dict[str, object]) -> dict[str, Parameter]:
    """Return the parameters that were set, as JSON values: no infinity."""
    return {
        name: _plain(value)
        for name, value in sorted(found.items())
        if value is not None and value == value
    }


def _plain(value: object) -> Parameter:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, (str, bool, int)) else str(value)
