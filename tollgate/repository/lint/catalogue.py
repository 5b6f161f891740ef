"""Collect all rules by code, and print the table of them for the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tollgate.repository.lint import (
    execution,
    exposure,
    graphs,
    layout,
    product_rules,
    queues,
    trial,
    version_rules,
    wire_rules,
)
from tollgate.repository.lint.lint_rule import Rule

_FAMILIES = (
    layout,
    wire_rules,
    queues,
    version_rules,
    execution,
    graphs,
    product_rules,
    trial,
    exposure,
)

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.code: rule
        for rule in sorted(
            (rule for family in _FAMILIES for rule in family.RULES),
            key=lambda rule: rule.code,
        )
    }
)

_ADDRESS = re.compile(r"((?:[\w-]+\.)+(?:com|ai)/[^\s;,]*?/)([\w.-]+)(?=[;,]|$)")

PRODUCT_ONLY = frozenset(
    [*(rule.code for rule in product_rules.RULES), "TG206", "TG207", "TG320"]
)
"""Codes of what is looked for in products of Tollgate alone."""


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
