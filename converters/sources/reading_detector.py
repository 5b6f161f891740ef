"""Use the detector of readings as a source that is converted and proven."""

from __future__ import annotations

import numpy as np

from converters.model import F32, F64, Facts, Floats, Probes
from converters.onnx.from_reading_detector import onnx_from_reading_detector
from converters.onnx.graph import cast_first
from converters.parity.boundaries import boundary_rows, made_rows
from converters.parity.probe_rows import assemble, special_rows
from tollgate.detection.detector import Detector, detector_scores
from tollgate.errors import ConversionError
from tollgate.explanation import Explanation
from tollgate.explanation.explanation_file import unexplained

CLASSES = (0, 1)  # normal, anomaly


class ReadingDetector:
    """A `TrainedModel` of a trained detector: the score is its second probability."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector

    @property
    def facts(self) -> Facts:
        from tollgate import __version__

        detector = self._detector
        return Facts(
            framework="tollgate",
            version=__version__,
            objective="1 - the share of readings with as much surprise",
            classes=CLASSES,
            columns=len(detector.features),
            names=detector.features,
            trees=0,
            parameters={"fewest_readings": detector.fewest_readings},
            converter=f"tollgate {__version__}",
        )

    def predict(self, rows: Floats) -> F64:
        score = detector_scores(self._detector, rows.astype(np.float32, copy=False))
        second = score.astype(np.float64)
        return np.column_stack([(np.float32(1) - score).astype(np.float64), second])

    def convert(self, *, wide: bool = False) -> bytes:
        graph = onnx_from_reading_detector(self._detector)
        return cast_first(graph) if wide else graph

    def pruned(self, *, trees: int | None, depth: int | None) -> ReadingDetector:
        """Raise ConversionError: it has no trees."""
        raise ConversionError("a detector of readings has no trees to prune")

    def explanation(self) -> Explanation:
        """Return the reason why there is no additive explanation."""
        return unexplained(
            "the score is that of the machine's most surprising sensor, not a sum; "
            "the reason codes name the sensor and the window",
            features=self._detector.features,
            classes=CLASSES,
        )

    def probes(self, samples: F32 | None) -> Probes:
        """Return sample rows (generated when None), rows around jumps, extremes."""
        if samples is None:
            samples = made_rows([], columns=len(self._detector.features))
        return assemble(
            {
                "sample": samples,
                "boundary": boundary_rows(self.predict, samples),
                "special": special_rows(samples),
            }
        )
