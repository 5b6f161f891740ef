"""One thing that is wrong with a model repository, as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tollgate.errors import InputError, RepositoryError


class Finding(msgspec.Struct, frozen=True):
    """
    What is wrong, and in which file.

    Attributes:
        file: The file as the caller named its repository.
        where: Tensor, key or line inside the file; empty when it is the whole.
        problem: What is wrong, with the value, and what would be right.
        code: Of the rule that found it; `tollgate.repository.lint.catalogue` says more.
        at: Path of the field inside a config.pbtxt, for its line; see
            `tollgate.repository.lint.locator`.
        line: In the file, from 1 on; 0 when only `at` or `where` can tell.
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
        """Turn the finding into the error that says the same."""
        return RepositoryError(self.file, self.problem, where=self.where)


@contextmanager
def collecting(
    findings: list[Finding],
    *,
    code: str,
    caught: type[InputError] = RepositoryError,
) -> Iterator[None]:
    """
    Turn an error raised inside the block into a finding, and go on.

    Args:
        findings: What it is added to.
        code: Of the rule that the error breaks.
        caught: Kind of error; others pass.
    """
    try:
        yield
    except caught as exc:
        problem = " ".join(exc.problem.split())
        findings.append(
            Finding(file=exc.source, where=exc.where, problem=problem, code=code)
        )
