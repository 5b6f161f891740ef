"""Write the winner as a named configuration, with a head that says how it was found."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from loadtests.tuner.settings import Configs, Roles
from loadtests.tuner.space import Candidate
from tollgate.errors import InputError, RepositoryError
from tollgate.repository.atomic import replace_file
from tollgate.repository.configs import NAMED_CONFIGS, to_text
from tollgate.repository.lint.linting import Question, lint
from tollgate.repository.lint.rule import Severity

_WIDTH = 86


def changed_steps(configs: Configs, candidate: Candidate, *, roles: Roles) -> list[str]:
    """List the steps whose configuration a candidate changes."""
    written = roles.written(configs, candidate)
    return [step for step, config in configs.items() if written[step] != config]


def write_named(
    repository: Path,
    configs: Configs,
    candidate: Candidate,
    *,
    name: str,
    roles: Roles,
    head: Sequence[str],
    question: Question,
) -> list[Path]:
    """
    Write configs/NAME.pbtxt of each step that differs; on an error, write nothing.

    Args:
        repository: The model repository.
        configs: Configurations that the server was started with.
        candidate: The settings.
        name: Name of the configuration.
        roles: Maps the steps to their roles.
        head: Description of how they were found; paragraphs.
        question: Options of the linter for the result.

    Returns:
        Paths of the files.

    Raises:
        InputError: A configuration of this name exists already.
        RepositoryError: The linter reports findings in the new files.
    """
    changed = roles.written(configs, candidate)
    files = {
        repository / step / NAMED_CONFIGS / f"{name}.pbtxt": step
        for step in changed_steps(configs, candidate, roles=roles)
    }
    require_free(list(files), name=name)
    try:
        for path, step in files.items():
            path.parent.mkdir(exist_ok=True)
            text = f"{_head(step, name, head)}\n{to_text(changed[step])}"
            replace_file(path, text.encode())
        _require_sound(question, files=list(files))
    except BaseException:
        for path in files:
            path.unlink(missing_ok=True)
        raise
    return list(files)


def require_free(files: Sequence[Path], *, name: str) -> None:
    """Raise if a file of this name would be overwritten."""
    for path in files:
        if path.exists():
            problem = f"{path} is there already; choose another name, or remove it"
            raise InputError("--name", problem, where=name)


def _head(step: str, name: str, paragraphs: Sequence[str]) -> str:
    """Write a comment with the name of the configuration and how it was found."""
    first = [
        f"{step}, as `tollgate tune` found it. Chosen with",
        f"    tollgate up --model-config-name {name}",
        "It stands in for config.pbtxt as a whole; why the rest is so, is said there.",
    ]
    lines = [f"# {line}" for line in first]
    for paragraph in paragraphs:
        lines += ["#", *(f"# {line}" for line in textwrap.wrap(paragraph, _WIDTH))]
    return "\n".join([*lines, ""])


def _require_sound(question: Question, *, files: Sequence[Path]) -> None:
    """Raise if the linter reports findings in the new files."""
    written = {str(path) for path in files}
    for issue in lint(question).issues:
        if issue.severity >= Severity.WARNING and issue.file in written:
            raise RepositoryError(issue.file, issue.problem, where=issue.where)
