"""What a rule of the linter is, and how much a broken one matters."""

from __future__ import annotations

from enum import IntEnum

import msgspec

DOCS = "docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/"
ISSUES = "github.com/triton-inference-server/server/issues/"


class Severity(IntEnum):
    """
    How much a finding matters; a higher one matters more.

    ADVICE: worth knowing; nothing need be wrong.
    WARNING: works, until the hazard that the rule names comes true.
    ERROR: does not load, decides wrongly, or lies open to whoever reaches it.
    """

    ADVICE = 0
    WARNING = 1
    ERROR = 2

    def __str__(self) -> str:
        """Print the word that the command line takes."""
        return self.name.lower()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """
    One thing that the linter looks for.

    Attributes:
        code: TG and three digits; it never changes its meaning.
        title: What a finding of it means, in a few words.
        severity: In any repository.
        in_product: In a product of Tollgate, where it is another one: `serve` refuses
            to start with it.
        why: What happens when it is broken.
        source: Where that is known from: a page, an issue, a measurement of ours.
        mend: What to do.
    """

    code: str
    title: str
    severity: Severity
    in_product: Severity | None = None
    why: str
    source: str
    mend: str

    def severity_in(self, *, product: bool) -> Severity:
        """Tell the severity in a product, or elsewhere."""
        if product and self.in_product is not None:
            return self.in_product
        return self.severity
