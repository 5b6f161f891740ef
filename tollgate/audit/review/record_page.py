"""Render one decision as a static HTML page that loads nothing and runs no script."""

from __future__ import annotations

from typing import Any

from tollgate.audit.releases.archived_release import ArchivedRelease
from tollgate.audit.releases.record_rows import PROBABILITY, SEQUENCE, WRITER
from tollgate.audit.review.lookup import SealedRecord
from tollgate.audit.review.record_text import (
    APPLIED_TEXTS,
    Description,
    describe_degraded,
    describe_features,
    describe_inputs,
    describe_reasons,
    describe_rules,
    has_money,
    moment,
)
from tollgate.schema import Applied
from tollgate.templating import render


def decision_page(found: SealedRecord, archived: ArchivedRelease | None) -> str:
    """Return a decision as one HTML document."""
    values = found.values
    return render(
        "tollgate/audit/templates/decision.html.j2",
        {
            "product": found.link.product,
            "record": f"{values[WRITER]}:{values[SEQUENCE]}",
            "decision": values["decision"],
            "decided_at": moment(values["decided_at"]),
            "figures": _figures(values, archived),
            "values": values,
            "reasons": describe_reasons(values, archived),
            "rules": describe_rules(values, archived),
            "contributions": [
                one for one in found.reasons if one.contribution is not None
            ],
            "unexplained": _unexplained(found),
            "inputs": describe_inputs(values, archived),
            "features": describe_features(values, archived),
            "labels": archived.policy.labels if archived and archived.policy else (),
            "probabilities": [
                value
                for name, value in values.items()
                if name.startswith(PROBABILITY) and value is not None
            ],
            "degraded": describe_degraded(values),
            "flags": [Description(check, detail) for check, detail in found.flags],
            "link": found.link,
            "row": found.row,
            "proof": found.evidence,
        },
    )


def _figures(
    values: dict[str, Any], archived: ArchivedRelease | None
) -> list[tuple[str, str]]:
    """Return the key figures at the top of the page."""
    score = values["score"]
    figures = [
        ("Score", "none" if score is None or score != score else f"{score:.4f}"),
        ("Release", values["release"]),
        ("Event applied", APPLIED_TEXTS[Applied(values["applied"])]),
        ("Stored for training", "yes" if values["consent"] else "no consent"),
    ]
    if has_money(values, archived):
        figures.insert(1, ("Amount", f"{values['amount_cents'] / 100:,.2f}"))
    return figures


def _unexplained(found: SealedRecord) -> str:
    """Return why no feature is listed that raised the score."""
    if found.reasons:
        return "No feature did: the codes above are the only reasons."
    return found.unexplained or "Not computed yet."
