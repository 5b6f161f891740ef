"""Write Prometheus rule files from the slo.yaml of products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tollgate.observability import slo_rules
from tollgate.observability.common_rules import ALERTS
from tollgate.observability.rule import Alert, Record
from tollgate.observability.selecting import DEFAULT, matchers, restrict
from tollgate.repository.product import read_product
from tollgate.repository.slo import SLO_FILE, read_slo

RUNBOOKS = "docs/runbooks"
_HEAD = "# Written by `tollgate alerts`; change {source} and write it again.\n"
_DEFAULT_HEAD = (
    "# Written by `tollgate alerts` from defaults: {product} has no slo.yaml. "
    "Add {source} to set others.\n"
)
_COMMON_SOURCE = "tollgate/observability/common_rules.py"


def rule_files(
    repository: Path,
    *,
    products: Sequence[str],
    runbooks: str = RUNBOOKS,
    select: Mapping[str, str] = DEFAULT,
) -> dict[str, str]:
    """
    Write the rules of products.

    Args:
        repository: The model repository.
        products: Ensembles in it.
        runbooks: Address in front of /NAME.md of an alert's runbook.
        select: Labels of the installation, if Prometheus also scrapes others; each rule
            selects only series with these labels, and the series and alerts that it
            produces have them.

    Returns:
        Text by name of the file.

    Raises:
        RepositoryError: A product cannot be read, or its slo.yaml has a wrong value.
    """
    writing = _RuleWriter(runbooks, select)
    files = {"tollgate.yaml": writing.text("tollgate", [], list(ALERTS))}
    head = _HEAD.format(source=_COMMON_SOURCE)
    files = {name: head + text for name, text in files.items()}
    for product in products:
        slo = read_slo(repository, product=product)
        steps = tuple(read_product(repository, product).steps)
        text = writing.text(
            f"tollgate-{product}",
            slo_rules.records(product, slo),
            slo_rules.alerts(product, slo, steps=steps),
        )
        source = f"{product}/{SLO_FILE}"
        template = _HEAD if (repository / source).exists() else _DEFAULT_HEAD
        head = template.format(product=product, source=source)
        files[f"slo-{product}.yaml"] = head + text
    return files


def all_alerts(repository: Path, *, product: str) -> list[Alert]:
    """List the alerts of a product, including those of all products."""
    slo = read_slo(repository, product=product)
    steps = tuple(read_product(repository, product).steps)
    return [*slo_rules.alerts(product, slo, steps=steps), *ALERTS]


class _RuleWriter:
    """Writes rules as YAML."""

    def __init__(self, runbooks: str, select: Mapping[str, str]) -> None:
        self._runbooks = runbooks
        self._select = select

    def text(self, name: str, records: list[Record], alerts: list[Alert]) -> str:
        """Write a file with one group."""
        # Prometheus evaluates the rules of one group in order, so alerts see the series
        # recorded in the same run.
        lines = ["groups:", f"  - name: {name}", "    rules:"]
        for record in records:
            lines += [f"      - record: {record.name}", self._expr(record.expr)]
            lines += self._labels(record.labels)
        for alert in alerts:
            labels = {"severity": alert.severity, "product": alert.product}
            lines += [f"      - alert: {alert.name}", self._expr(alert.expr)]
            lines += [f"        for: {alert.wait}", *self._labels(labels)]
            page = f"{self._runbooks}/{alert.name}.md"
            lines += [
                "        annotations:",
                f"          summary: {_quoted(alert.summary)}",
                f"          runbook_url: {_quoted(page)}",
            ]
        return "\n".join(lines) + "\n"

    def _expr(self, expr: str) -> str:
        return f"        expr: {_quoted(restrict(expr, matchers(self._select)))}"

    def _labels(self, labels: Mapping[str, str]) -> list[str]:
        """Write labels, and those of the installation: aggregation removes them."""
        lines = [f"          {key}: {one}" for key, one in labels.items() if one]
        own = [f"          {key}: {_quoted(one)}" for key, one in self._select.items()]
        return ["        labels:", *lines, *own]


def _quoted(text: str) -> str:
    """Quote a text for YAML, so that it is read literally."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
