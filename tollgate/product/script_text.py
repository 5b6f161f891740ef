"""Write the first training script of a product."""

from __future__ import annotations

from tollgate.product.plan import Plan
from tollgate.templating import render

SCRIPT_FILE = "train.py"


def script_text(plan: Plan, *, kind: str) -> str:
    """
    Write train.py, which is next to the ensemble's configuration.

    Args:
        plan: The product.
        kind: Kind of the baseline.
    """
    choices = plan.choices
    return render(
        "tollgate/product/templates/train.py.j2",
        {
            "product": choices.product,
            "script": SCRIPT_FILE,
            "table": str(choices.table.resolve()),
            "label": choices.label,
            "positive": plan.label.positive,
            "label_delay_us": choices.label_delay_us,
            "sensitive": choices.sensitive,
            "kind": kind,
        },
    )
