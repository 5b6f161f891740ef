"""Read the rules of the linter in rules.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec


class Severity(IntEnum):
    """
    The severity of a finding; a higher one matters more.

    ADVICE: worth knowing; the repository may still be right.
    WARNING: works, until the hazard that the rule names occurs.
    ERROR: does not load, decides wrongly, or is open to anyone who can reach it.
    """

    ADVICE = 0
    WARNING = 1
    ERROR = 2

    def __str__(self) -> str:
        """Print the word that the command line takes."""
        return self.name.lower()


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One rule of the linter.

    Attributes:
        code: TG and three digits; it never changes its meaning.
        title: Meaning of a finding, in a few words.
        severity: Severity in any repository.
        in_product: Severity in a product of Tollgate, if it differs: `serve` refuses to
            start with it.
        why: Consequence of breaking the rule.
        source: Evidence for it: a page, an issue, our own measurement.
        mend: Remedy.
        only_products: Whether only products of Tollgate are searched for it.
    """

    code: str
    title: str
    severity: Severity
    in_product: Severity | None = None
    why: str
    source: str
    mend: str
    only_products: bool = False

    def severity_in(self, *, product: bool) -> Severity:
        """Return the severity in a product, or elsewhere."""
        if product and self.in_product is not None:
            return self.in_product
        return self.severity


def _rule(code: str, fields: dict[str, Any]) -> Rule:
    levels: dict[str, Any] = {
        key: Severity[fields[key].upper()]
        for key in ("severity", "in_product")
        if key in fields
    }
    return msgspec.convert({**fields, **levels, "code": code}, Rule)


_TABLE: dict[str, dict[str, Any]] = msgspec.yaml.decode(
    (Path(__file__).parent / "rules.yaml").read_bytes()
)
RULES: Mapping[str, Rule] = {
    code: _rule(code, fields) for code, fields in _TABLE.items()
}
