"""One thing that is wrong with a model repository, as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tollgate.errors import RepositoryError


class Finding(msgspec.Struct, frozen=True):
    """
    What is wrong, and in which file.

    Attributes:
        file: The file as the caller named its repository.
        where: Tensor, key or line inside the file; empty when it is the whole.
        problem: What is wrong, with the value, and what would be right.
    """

    file: str
    where: str
    problem: str

    def __str__(self) -> str:
        """Print the finding as `file: where: problem`."""
        return ": ".join(part for part in (self.file, self.where, self.problem) if part)

    def as_error(self) -> RepositoryError:
        """Turn the finding into the error that says the same."""
        return RepositoryError(self.file, self.problem, where=self.where)


@contextmanager
def collecting(findings: list[Finding]) -> Iterator[None]:
    """Turn a RepositoryError raised inside the block into a finding, and go on."""
    try:
        yield
    except RepositoryError as exc:
        problem = " ".join(exc.problem.split())
        findings.append(Finding(file=exc.source, where=exc.where, problem=problem))
