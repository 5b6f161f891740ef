"""Record how far a converted model's answers are from those of its source."""

from __future__ import annotations

import msgspec

from tollgate.errors import ParityError

TOLERANCE = 1e-5  # of a probability; float32 sums of 100 trees stay below 1e-6


class Disagreement(msgspec.Struct, frozen=True):
    """
    One probe row on which the two models differ most.

    Attributes:
        row: Its position among the probes.
        kind: Kind of probe that it is.
        source: Probability of one class by the source.
        converted: The same by the converted model.
        label: Position of that class.
    """

    row: int
    kind: str
    source: float
    converted: float
    label: int = 1


class ParityReport(msgspec.Struct, frozen=True):
    """
    The differences between a converted model and its source.

    Differences are of probabilities, of each row's class that differs most.

    Args:
        runtime: Runtime of the converted model, with its version.
        rows: Number of probe rows compared.
        max_delta: Largest |source - converted|; infinite when a probability is NaN or
            outside [0, 1].
        flips: (row, class, threshold) triples on different sides of a threshold; with
            two classes P(1) counts, with more each of them. The source's probability
            counts as the float32 nearest to it, because a score is a float32.
        batch_delta: Largest difference of one row's probability alone, in a batch of 32
            and in a shuffled batch; 0 when the other rows do not matter.
        thresholds: Decision thresholds that flips were counted at.
        tolerance: Maximum of max_delta and batch_delta.
        worst: The rows that differ most, worst first.
        mean_delta: Mean |source - converted|; None in records older than this field.
        quantiles: Quantiles of |source - converted|, by level as text; None as for
            mean_delta.
        unanswered: Number of probe rows that the source itself refuses; not compared.
        kinds: Rows compared per kind of probe.
        alone: Number of rows that were also sent alone; the others were sent in batches
            only. None in older records, where all of them were.
    """

    runtime: str
    rows: int
    max_delta: float
    flips: int
    batch_delta: float
    thresholds: tuple[float, ...]
    tolerance: float
    worst: tuple[Disagreement, ...]
    mean_delta: float | None = None
    quantiles: dict[str, float] = {}
    unanswered: int = 0
    kinds: dict[str, int] = {}
    alone: int | None = None

    @property
    def would_pass(self) -> float:
        """The smallest tolerance that would pass; flips fail at any."""
        return max(self.max_delta, self.batch_delta)

    @property
    def passed(self) -> bool:
        """Return whether nothing flips and every difference is within tolerance."""
        return self.flips == 0 and self.would_pass <= self.tolerance

    @property
    def figures(self) -> str:
        """The figures of the report, in one line."""
        first = self.worst[0]
        return (
            f"{self.runtime}, {self.rows} rows: probabilities differ by up to "
            f"{self.max_delta:.3g}, alone and batched by up to {self.batch_delta:.3g} "
            f"(allowed {self.tolerance:.3g}), {self.flips} decisions flip; worst is "
            f"{first.kind} row {first.row}: "
            f"{first.source:.9g} became {first.converted:.9g}"
        )

    def check(self) -> None:
        """Raise ParityError with the figures unless the models agree."""
        if not self.passed:
            raise ParityError(
                f"the converted model does not answer as its source ({self.figures})"
            )
