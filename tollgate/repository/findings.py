"""Represent one problem of a model repository as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tollgate.errors import InputError, RepositoryError


class Finding(msgspec.Struct, frozen=True):
    """
    A problem, and the file that it is in.

    Attributes:
        file: The file, with the path of the repository as the caller gave it.
        where: Tensor, key or line inside the file; empty for the file as a whole.
        problem: Description of the problem, with the value, and what would be right.
        code: Code of the rule that found it; see `tollgate.repository.lint.linting`.
        at: Path of the field inside a config.pbtxt, for its line, unless
            `where` is that path; see `tollgate.repository.lint.linting`.
        line: Line in the file, from 1; 0 if it follows only from `at` or `where`.
    """

    file: str
    where: str
    problem: str
    code: str
    at: str = ""
    line: int = 0

    def __str__(self) -> str:
        """Print the finding as `file: where: problem`."""
        return ": ".join(part for part in (self.file, self.where, self.problem) if part)

    def as_error(self) -> RepositoryError:
        """Return an error with the same text as the finding."""
        return RepositoryError(self.file, self.problem, where=self.where)


@contextmanager
def collecting(
    findings: list[Finding],
    *,
    code: str,
    caught: type[InputError] = RepositoryError,
) -> Iterator[None]:
    """Turn an error of a kind raised inside the block into a finding, and go on."""
    try:
        yield
    except caught as exc:
        problem = " ".join(exc.problem.split())
        findings.append(
            Finding(file=exc.source, where=exc.where, problem=problem, code=code)
        )
