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
    asked = plan.asked
    return render(
        "tollgate/product/templates/train.py.j2",
        {
            "product": asked.product,
            "script": SCRIPT_FILE,
            "table": str(asked.table.resolve()),
            "label": asked.label,
            "positive": plan.label.positive,
            "label_delay_us": asked.label_delay_us,
            "sensitive": asked.sensitive,
            "kind": kind,
        },
    )
