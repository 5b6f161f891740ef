"""
Check any Triton repository, and the command line of the server that is to run it.

The linter starts nothing and uses no network.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tollgate.errors import PolicyError
from tollgate.repository.check import product_findings
from tollgate.repository.configs import NAMED_CONFIGS, require_config_name
from tollgate.repository.findings import Finding, collecting
from tollgate.repository.gates import read_gates
from tollgate.repository.lint import (
    execution,
    exposure,
    graphs,
    layout,
    queues,
    trial,
    version_rules,
    wire_rules,
)
from tollgate.repository.lint.catalogue import RULES
from tollgate.repository.lint.places import Places
from tollgate.repository.lint.rule import Rule, Severity
from tollgate.repository.lint.start_line import ServerCommandLine
from tollgate.repository.lint.view import (
    View,
    find_products,
    read_models,
    with_steps,
)
from tollgate.repository.slo import read_slo
from tollgate.repository.snapshot import RepositorySnapshot

_FAMILIES = (layout, wire_rules, queues, version_rules, execution)


class Issue(msgspec.Struct, frozen=True):
    """
    A finding with its rule.

    Attributes:
        rule: The rule.
        severity: Its severity in this repository.
        file: The file, with the path of the repository as the caller gave it.
        line: Line in the file, from 1; 0 for the file as a whole.
        where: Tensor or key; empty for the file as a whole.
        problem: Description of the problem, with the value.
    """

    rule: Rule
    severity: Severity
    file: str
    line: int
    where: str
    problem: str


class Report(msgspec.Struct, frozen=True):
    """
    The issues, and the models that were checked.

    Attributes:
        issues: The most severe first, then by file and line.
        models: Names of the models that were read.
        products: Names of those that are products of Tollgate.
    """

    issues: list[Issue]
    models: tuple[str, ...]
    products: tuple[str, ...]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """
    The repository to check, and the server that it is checked for.

    Attributes:
        repository: The model repository.
        product: Check this product alone; empty for all models.
        config_name: Named configuration to read if a model has it.
        release: Release of Triton, year and month; empty if it is not known.
        release_origin: Name under which findings report the release, such as an option.
        start_line: Command line of the server; None if it is not known.
        cores: Number of cores that the server may use.
        objective_ms: Maximum time to an answer; None for slo.yaml's, which products
            alone have.
    """

    repository: Path
    product: str = ""
    config_name: str = ""
    release: str = ""
    release_origin: str = "release"
    start_line: ServerCommandLine | None = None
    cores: int = 1
    objective_ms: float | None = None


def lint(question: Question) -> Report:
    """
    Find present and future problems of a repository.

    Raises:
        RepositoryError: There is no such repository, or no model in it.
        InputError: The name of the configuration is not valid.
    """
    require_config_name(question.config_name)
    findings: list[Finding] = []
    view = _view(question, findings=findings)
    for product in view.products:
        snapshot = _snapshot_for(question, product, view=view)
        findings += product_findings(snapshot, product=product)
    for family in _FAMILIES:
        findings += family.findings(view)
    findings += trial.findings(view)
    findings += _server_findings(question, view=view)
    places = Places()
    # A product's own check and the rules for all models may find the same.
    issues = {_issue(finding, view=view, places=places) for finding in findings}
    return Report(
        issues=sorted(issues, key=_order),
        models=tuple(view.models),
        products=view.products,
    )


def _snapshot_for(
    question: Question, product: str, *, view: View
) -> RepositorySnapshot:
    """
    Return the repository with the named configuration to use for a product.

    A name that is given for the whole repository applies to the products that have it;
    a product that is checked alone must have it.
    """
    if question.product or not question.config_name:
        return view.snapshot
    names = with_steps([product], view.models)
    file = f"{NAMED_CONFIGS}/{question.config_name}.pbtxt"
    has = any((question.repository / name / file).is_file() for name in names)
    return view.snapshot if has else RepositorySnapshot(question.repository)


def _view(question: Question, *, findings: list[Finding]) -> View:
    """Read the repository; if one product is named, its models only."""
    unread: list[Finding] = []
    snapshot = RepositorySnapshot(question.repository, config_name=question.config_name)
    models = read_models(snapshot, findings=unread)
    products = find_products(question.repository, models)
    if question.product:
        products = [question.product]
        names = with_steps(products, models)
        models = {name: models[name] for name in models if name in names}
    files = {model.file for model in models.values()}
    findings += [finding for finding in unread if finding.file in files]
    objectives_ms: dict[str, float] = {}
    for product in products:
        with collecting(findings, code="TG319"):
            slo = read_slo(question.repository, product=product)
            own = with_steps([product], models)
            objectives_ms |= dict.fromkeys(own, slo.latency_objective_ms)
        with collecting(findings, code="TG321", caught=PolicyError):
            read_gates(question.repository, product=product)
    if question.objective_ms is not None:
        objectives_ms = dict.fromkeys(models, question.objective_ms)
    return View(
        snapshot=snapshot,
        models=models,
        products=tuple(products),
        in_products=with_steps(products, models),
        cores=question.cores,
        objectives_ms=objectives_ms,
    )


def _server_findings(question: Question, *, view: View) -> Iterator[Finding]:
    """Check the command line and the release, if they are known."""
    line = question.start_line
    if line is not None:
        strictest_ms = min(view.objectives_ms.values(), default=None)
        yield from exposure.findings(line, objective_ms=strictest_ms)
    file, at_line, release = question.release_origin, 0, question.release
    if line is not None and line.release and not release:
        file, at_line, release = line.file, line.release_line, line.release
    if release:
        yield from exposure.release_findings(
            release, line=line, file=file, at_line=at_line
        )
        yield from graphs.findings(view, release=release)


def _issue(finding: Finding, *, view: View, places: Places) -> Issue:
    """Add rule, severity and line to a finding."""
    rule = RULES[finding.code]
    return Issue(
        rule=rule,
        severity=rule.severity_in(product=_model_of(finding, view) in view.in_products),
        file=finding.file,
        line=finding.line or places.line(finding),
        where=places.where(finding),
        problem=finding.problem,
    )


def _model_of(finding: Finding, view: View) -> str:
    """Return the model whose folder contains a file; empty for other files."""
    path = Path(finding.file)
    if not path.is_relative_to(view.repository):
        return ""
    return next(iter(path.relative_to(view.repository).parts), "")


def _order(issue: Issue) -> tuple[int, str, int, str, str, str]:
    """Sort by severity, the highest first, then by file and line."""
    texts = issue.rule.code, issue.where, issue.problem
    return (-issue.severity, issue.file, issue.line, *texts)
