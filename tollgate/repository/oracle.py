"""Record the evidence for a converted model: its source, raw rows, its author."""

from __future__ import annotations

import msgspec

from tollgate.repository.release import Sha256


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
