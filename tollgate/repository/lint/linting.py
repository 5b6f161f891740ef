"""
Check any Triton repository, and the command line of the server that is to run it.

The linter starts nothing and uses no network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import yaml

from tollgate.errors import PolicyError
from tollgate.repository.configs import NAMED_CONFIGS, require_config_name
from tollgate.repository.findings import Finding, collecting
from tollgate.repository.gate_limits import read_gates
from tollgate.repository.lint import exposure, model_rules, product_rules
from tollgate.repository.lint.lint_rule import RULES, Rule, Severity
from tollgate.repository.lint.start_line import ServerCommandLine
from tollgate.repository.lint.view import (
    View,
    find_products,
    read_models,
    with_steps,
)
from tollgate.repository.serving_form import require_form
from tollgate.repository.slo import read_slo
from tollgate.repository.snapshot import RepositorySnapshot

_ADDRESS = re.compile(r"((?:[\w-]+\.)+(?:com|ai)/[^\s;,]*?/)([\w.-]+)(?=[;,]|$)")

PRODUCT_ONLY = frozenset(code for code, rule in RULES.items() if rule.only_products)
"""Codes of the rules for products of Tollgate alone."""


def table() -> Iterator[str]:
    """Print the rules as lines of a Markdown table, for docs/check.md."""
    yield "| code | finds | severity | why | mend | source |"
    yield "|---|---|---|---|---|---|"
    for rule in RULES.values():
        severity = str(rule.severity)
        if rule.code in PRODUCT_ONLY:
            severity += ", in products only"
        elif rule.in_product is not None:
            severity += f"; in a product {rule.in_product}"
        source = _ADDRESS.sub(r"[\2](https://\1\2)", rule.source)
        cells = rule.code, rule.title, severity, rule.why, rule.mend, source
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# Find the line of a config.pbtxt on which a field stands.
#
# Protobuf's own parser forgets lines as it goes, so the text is read a second time
# here, for its structure alone. That parser (`tollgate.repository.configs`) decides if
# the text is a valid configuration; text that cannot be read here gets the last line
# that could be read.
#
# A path names fields from the outside in, joined by dots. An entry of a list or of a
# map is chosen by its name, model_name or key, in brackets, or by its number after a
# hash:
#
#     dynamic_batching.max_queue_delay_microseconds
#     ensemble_scheduling.step[fraud_model].input_map[features]
#     instance_group[#1].count

_TOKEN = re.compile(
    r"""(?P<space>[\s;,]+|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<mark>[\[\]{}<>:])
      | (?P<word>[^\s;,\[\]{}<>:"'\#]+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_PART = re.compile(r"(\w+)(?:\[([^\]]*)\])?(?:\.|$)")
_NAMES = ("name", "model_name", "key", "family")
_OPENING, _CLOSING = "{<", "}>"


class Node(msgspec.Struct):
    """
    One field of the text.

    Attributes:
        name: Name of the field; empty for the whole file.
        line: Line on which it begins, from 1.
        value: Value of a scalar, without quotes; empty for a message.
    """

    name: str
    line: int
    value: str = ""
    fields: list[Node] = msgspec.field(default_factory=list)

    def named(self, name: str, selector: str | None) -> Node | None:
        """Find the first field of a name that the selector chooses; None: any."""
        found = [field for field in self.fields if field.name == name]
        if selector is None:
            return found[0] if found else None
        if selector.startswith("#"):
            place = int(selector[1:])
            return found[place] if place < len(found) else None
        for field in found:
            if any(
                inner.name in _NAMES and inner.value == selector
                for inner in field.fields
            ):
                return field
        return None


def read_tree(text: str) -> Node:
    """Read the structure of protobuf text; never fails."""
    root = Node(name="", line=1)
    tokens = list(_tokens(text))
    if tokens:
        root.line = tokens[0][2]
    _Reader(tokens).message(root, closing="")
    return root


def line_of(tree: Node, path: str) -> int:
    """
    Return the line of a field, or of the nearest existing field around it.

    Args:
        path: Path of the field, as described above; empty for the file's first field.
    """
    node = tree
    for name, selector in _PART.findall(path):
        # findall does not distinguish a missing bracket from an empty one.
        inner = node.named(name, selector or None)
        if inner is None:
            break
        node = inner
    return node.line


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield kind, text and line of everything but space and comments."""
    line = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind != "space":
            yield kind, match[0], line
        line += match[0].count("\n")


class _Reader:
    """Parse tokens (kind, text, line) into fields."""

    def __init__(self, tokens: list[tuple[str, str, int]]) -> None:
        self._tokens = tokens
        self._next = 0

    def _peek(self) -> str:
        """Return the next token without taking it; empty at the end."""
        at_end = self._next >= len(self._tokens)
        return "" if at_end else self._tokens[self._next][1]

    def _take(self) -> tuple[str, str, int]:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def message(self, node: Node, *, closing: str) -> None:
        """Read fields until the bracket that closes their message."""
        while self._peek():
            kind, text, line = self._take()
            if closing and text in closing:
                return
            if kind == "word":
                self._field(node, name=text, line=line)

    def _field(self, parent: Node, *, name: str, line: int) -> None:
        """Read the part after a name: a value, or a list, one field for each entry."""
        if self._peek() == ":":
            self._take()
        if self._peek() != "[":
            parent.fields.append(self._value(name, line))
            return
        self._take()
        while self._peek() not in ("", "]"):
            start = self._next
            # An entry of a list begins at its own bracket or word.
            parent.fields.append(self._value(name, self._tokens[start][2]))
            if self._next == start:
                self._take()  # a stray bracket: skip it
        if self._peek():
            self._take()

    def _value(self, name: str, line: int) -> Node:
        """Read a message or a scalar; adjacent strings are one."""
        node = Node(name=name, line=line)
        if self._peek() and self._peek() in _OPENING:
            self._take()
            self.message(node, closing=_CLOSING)
            return node
        kind = self._tokens[self._next][0] if self._peek() else ""
        if kind == "word":
            node.value = self._take()[1]
        while self._peek() and self._tokens[self._next][0] == "string":
            node.value += self._take()[1][1:-1]
        return node


# Find the line of the file that a finding points to.

_LINE = re.compile(r"line (\d+)(?:: )?")


class Places:
    """Read each file that findings name once, to find their lines."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._trees: dict[str, Node] = {}

    def where(self, finding: Finding) -> str:
        """Return the position inside the file, without its line number."""
        return _LINE.sub("", finding.where, count=1)

    def line(self, finding: Finding) -> int:
        """Find the line, from 1; 0 for the file as a whole."""
        if finding.line:
            return finding.line
        if line := _LINE.match(finding.where):
            return int(line[1])
        kind = Path(finding.file).suffix
        if kind == ".pbtxt" and self._text(finding.file):
            return line_of(self._tree(finding.file), finding.at or finding.where)
        if kind in (".json", ".yaml") and finding.where:
            return self._key_line(finding)
        return 0

    def _text(self, file: str) -> str:
        if file not in self._texts:
            path = Path(file)
            readable = path.is_file()
            self._texts[file] = path.read_text("utf-8", "replace") if readable else ""
        return self._texts[file]

    def _tree(self, file: str) -> Node:
        if file not in self._trees:
            self._trees[file] = read_tree(self._text(file))
        return self._trees[file]

    def _key_line(self, finding: Finding) -> int:
        """
        Find the first line with the last key of `where`, in JSON or YAML.

        A path of keys joined by dots, such as `entities.customer.hop`, is followed in
        YAML.
        """
        path = finding.where.rpartition(": ")[2].partition("[")[0]
        key = re.escape(path)
        pattern = re.compile(rf"""^\s*(?:-\s+)?["']?{key}["']?\s*:""", re.MULTILINE)
        text = self._text(finding.file)
        if found := pattern.search(text):
            return text.count("\n", 0, found.end()) + 1
        is_yaml = Path(finding.file).suffix == ".yaml"
        return _line_of_keys(text, path.split(".")) if is_yaml else 0


def _line_of_keys(text: str, keys: Sequence[str]) -> int:
    """
    Find the line of the innermost key that a YAML file has; 0 if it has none.

    A key also names the entry of a list that has it as its `name`.
    """
    line = 0
    try:
        node = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return line
    for key in keys:
        if isinstance(node, yaml.SequenceNode):
            pairs = [(_named(one, "name"), one) for one in node.value]
        else:
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = [(one, value) for one, value in pairs if one and one.value == key]
        if not found:
            break
        line, node = found[0][0].start_mark.line + 1, found[0][1]
    return line


def _named(node: yaml.Node, key: str) -> yaml.Node | None:
    """Return the value of a key of a mapping."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


class Issue(msgspec.Struct, frozen=True):
    """
    A finding with its rule.

    Attributes:
        file: The file, with the path of the repository as the caller gave it.
        line: Line in the file, from 1; 0 for the file as a whole.
        where: Tensor or key; empty for the file as a whole.
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
        findings += product_rules.product_findings(snapshot, product=product)
    findings += model_rules.findings(view)
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
            with collecting(findings, code="TG324"):
                if slo.form != "ensemble":
                    require_form(snapshot.product(product), slo.form)
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
        yield from model_rules.graph_findings(view, release=release)


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
