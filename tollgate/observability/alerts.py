"""Rule files for Prometheus, out of the slo.yaml of products."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tollgate.observability import slo_rules
from tollgate.observability.common_rules import ALERTS
from tollgate.observability.rule import Alert, Record
from tollgate.repository.product import read_product
from tollgate.repository.slo import SLO_FILE, read_slo

RUNBOOKS = "docs/runbooks"
_HEAD = "# Written by `tollgate alerts`; change {source} and write it again.\n"
_COMMON_SOURCE = "tollgate/observability/common_rules.py"


def rule_files(
    repository: Path, *, products: Sequence[str], runbooks: str = RUNBOOKS
) -> dict[str, str]:
    """
    Write the rules of products.

    Args:
        repository: The model repository.
        products: Ensembles in it.
        runbooks: What comes before /NAME.md in the address of an alert's runbook.

    Returns:
        Text by name of the file.

    Raises:
        RepositoryError: A product cannot be read, or its slo.yaml has a wrong value.
    """
    files = {"tollgate.yaml": _text("tollgate", [], list(ALERTS), runbooks)}
    head = _HEAD.format(source=_COMMON_SOURCE)
    files = {name: head + text for name, text in files.items()}
    for product in products:
        slo = read_slo(repository, product=product)
        steps = tuple(read_product(repository, product).steps)
        text = _text(
            f"tollgate-{product}",
            slo_rules.records(product, slo),
            slo_rules.alerts(product, slo, steps=steps),
            runbooks,
        )
        head = _HEAD.format(source=f"{product}/{SLO_FILE}")
        files[f"slo-{product}.yaml"] = head + text
    return files


def all_alerts(repository: Path, *, product: str) -> list[Alert]:
    """List the alerts of a product, those of all products among them."""
    slo = read_slo(repository, product=product)
    steps = tuple(read_product(repository, product).steps)
    return [*slo_rules.alerts(product, slo, steps=steps), *ALERTS]


def _text(name: str, records: list[Record], alerts: list[Alert], runbooks: str) -> str:
    # One group: its rules are worked out in order, so alerts see what was recorded now.
    lines = ["groups:", f"  - name: {name}", "    rules:"]
    for record in records:
        lines.append(f"      - record: {record.name}")
        lines += [f"        expr: {_quoted(record.expr)}", "        labels:"]
        lines += [f"          {key}: {one}" for key, one in record.labels.items()]
    for alert in alerts:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_quoted(alert.expr)}",
            f"        for: {alert.wait}",
            "        labels:",
            f"          severity: {alert.severity}",
        ]
        if alert.product:
            lines.append(f"          product: {alert.product}")
        lines += [
            "        annotations:",
            f"          summary: {_quoted(alert.summary)}",
            f"          runbook_url: {_quoted(f'{runbooks}/{alert.name}.md')}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Write a YAML string that is read as it stands."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
