"""Record how far a converted model's answers are from those of its source."""

from __future__ import annotations

import msgspec

from tollgate.errors import ParityError
from tollgate.repository.releases.release_file import Sha256

# Record the evidence for a converted model: its source, raw rows, its author.


class RowsFile(msgspec.Struct, frozen=True):
    """A file of rows: its name, its SHA-256 and how many rows were taken."""

    name: str
    sha256: Sha256
    rows: int

    def __str__(self) -> str:
        """Describe it for a person."""
        return f"{self.rows:,} rows of {self.name} (sha256 {self.sha256[:12]}…)"


class Apart(msgspec.Struct, frozen=True):
    """
    The difference of two answers to the same rows.

    Attributes:
        max_delta: Largest difference of a probability.
        rows: Number of rows with a difference above the tolerance.
        first: The first of these rows, from 1; 0 for none.
        wanted, found: Its probability by the source or the author, and as converted.
    """

    max_delta: float
    rows: int = 0
    first: int = 0
    wanted: float = 0.0
    found: float = 0.0

    def __str__(self) -> str:
        """Describe the difference in one line."""
        text = f"largest difference {self.max_delta:.2g}"
        if self.rows:
            text += (
                f"; {self.rows:,} rows differ by more, the first is row {self.first}: "
                f"{self.wanted:.9g} became {self.found:.9g}"
            )
        return text


class Oracle(msgspec.Struct, frozen=True):
    """
    The evidence that a proof is based on.

    Attributes:
        source: Library that computed the source's answers, with its version.
        tolerance: Maximum difference of a probability.
        raw: The rows that the source answered, as in their file, in float64; None
            without a file of rows.
        raw_apart: Difference of its answers from those of the converted model, which
            got the same rows in the form in which they are sent when served.
        expected: The author's file of answers; None if there is none.
        expected_apart: Difference of these from the converted model's.
        shared_reader: True if the library that answered also read the file for the
            conversion, and nothing else confirms how the file is to be read.
    """

    source: str
    tolerance: float
    raw: RowsFile | None = None
    raw_apart: Apart | None = None
    expected: RowsFile | None = None
    expected_apart: Apart | None = None
    shared_reader: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """Describe each comparison that was made, in one line each."""
        said = []
        if self.expected is not None and self.expected_apart is not None:
            said.append(
                f"proven against the author's answers, {self.expected}: "
                f"{self.expected_apart} (allowed {self.tolerance:g})"
            )
        if self.raw_apart is None:
            said.append(f"proven against {self.source}, on no raw rows of a file")
        else:
            where = "raw rows" if self.raw is None else f"raw {self.raw}"
            said.append(f"proven against {self.source}, {where}: {self.raw_apart}")
        return tuple(said)

    @property
    def warnings(self) -> tuple[str, ...]:
        """List what the proof does not cover, in one sentence each."""
        said = []
        if self.raw_apart is not None and self.raw_apart.rows:
            said.append(
                "rows are rounded on their way to the model, and the source answers "
                f"{self.raw_apart.rows:,} of them otherwise as their file has them"
            )
        if self.shared_reader:
            said.append(
                f"{self.source} read the file for the conversion and gave the answers "
                "it was compared with: were the file misread, both would agree; the "
                "author's own answers would show it (tollgate convert --expected)"
            )
        return tuple(said)


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
