"""Print the linter's result: text for people, JSON for programs, an exit status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tollgate.repository.lint.lint_rule import Severity
from tollgate.repository.lint.linting import Issue


def at_least(issues: Sequence[Issue], threshold: Severity) -> list[Issue]:
    """Select the issues at or above a severity."""
    return [issue for issue in issues if issue.severity >= threshold]


def exit_status(issues: Sequence[Issue]) -> int:
    """Return 2 with an error, 1 with a warning, else 0: advice fails nothing."""
    return int(max((issue.severity for issue in issues), default=Severity.ADVICE))


def text_lines(issues: Sequence[Issue], *, folder: Path) -> Iterator[str]:
    """Print findings, one per line, relative to a folder; explain each rule once."""
    for issue in issues:
        place = _place(issue, folder=folder)
        text = ": ".join(part for part in (place, issue.where, issue.problem) if part)
        yield f"{issue.severity!s:<7}  {issue.rule.code}  {text}"
    for rule in {issue.rule.code: issue.rule for issue in issues}.values():
        yield ""
        yield f"{rule.code}  {rule.title}"
        yield f"  why     {rule.why}"
        yield f"  mend    {rule.mend}"
        yield f"  source  {rule.source}"


def summary(issues: Sequence[Issue]) -> str:
    """Count the findings by severity, as text."""
    counts = Counter(issue.severity for issue in issues)
    return ", ".join(
        f"{counts[severity]} {_plural(severity, counts[severity])}"
        for severity in sorted(Severity, reverse=True)
        if counts[severity]
    )


def _plural(severity: Severity, count: int) -> str:
    countable = severity is not Severity.ADVICE and count != 1
    return f"{severity}s" if countable else str(severity)


def _place(issue: Issue, *, folder: Path) -> str:
    path = Path(issue.file)
    file = path.relative_to(folder) if path.is_relative_to(folder) else path
    return f"{file}:{issue.line}" if issue.line else str(file)


def json_text(issues: Sequence[Issue], *, folder: Path) -> str:
    """Print findings as one JSON object: `findings` and `exit_status`."""
    report = {
        "findings": [_record(issue, folder=folder) for issue in issues],
        "exit_status": exit_status(issues),
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def _record(issue: Issue, *, folder: Path) -> dict[str, Any]:
    return {
        "code": issue.rule.code,
        "severity": str(issue.severity),
        "file": _place(msgspec.structs.replace(issue, line=0), folder=folder),
        "line": issue.line or None,
        "where": issue.where,
        "problem": issue.problem,
        "title": issue.rule.title,
        "why": issue.rule.why,
        "mend": issue.rule.mend,
        "source": issue.rule.source,
    }
