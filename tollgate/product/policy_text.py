"""Write the first policy.yaml and slo.yaml of a product."""

from __future__ import annotations

from tollgate.product.plan import Plan
from tollgate.product.thresholds import Costs, Rates, Thresholds
from tollgate.templating import render


def policy_text(plan: Plan, thresholds: Thresholds, *, seen: bool) -> str:
    """
    Write policy.yaml.

    Args:
        plan: The product.
        thresholds: Its thresholds.
        seen: True if the model may have been trained on the rows they come from.
    """
    return render(
        "tollgate/product/templates/policy.yaml.j2",
        {
            "product": plan.choices.product,
            "label": plan.choices.label,
            "positive": plan.label.positive,
            "outcome": plan.outcome,
            "other": plan.other,
            "origin": _origin(thresholds, seen=seen),
            "review": thresholds.review,
            "decline": thresholds.decline,
            "sensitive": plan.choices.sensitive,
        },
    )


def slo_text(product: str) -> str:
    """Write slo.yaml."""
    return render("tollgate/product/templates/slo.yaml.j2", {"product": product})


def _origin(thresholds: Thresholds, *, seen: bool) -> tuple[str, ...]:
    """Describe in sentences the origin of the thresholds, and their effect there."""
    kind = "rows" if seen else "held-out rows"
    rows = (
        f"Chosen on {thresholds.rows:,} {kind} ({thresholds.origin}), "
        f"{thresholds.positives:,} of them positive. "
    )
    if seen:
        rows += "The model came from elsewhere and may have been trained on them."
    else:
        rows += "The model was not trained on them, but new rows may fare a bit worse."
    if thresholds.few:
        rows += " Few rows are positive: another sample would give other thresholds."
    total = thresholds.rows
    review = _effect(
        "review", thresholds.reviewed, found=thresholds.found_reviewed, of=total
    )
    decline = "decline: left out, no score declines."
    if thresholds.decline is not None:
        decline = _effect(
            "decline", thresholds.declined, found=thresholds.found_declined, of=total
        )
    return rows, criterion_text(thresholds), review, decline


def criterion_text(thresholds: Thresholds) -> str:
    """Describe in one sentence the criterion for the thresholds."""
    goal = thresholds.goal
    if isinstance(goal, Costs):
        wrong = "and no cost of a wrong decline, so no score declines"
        if goal.wrong_decline is not None:
            wrong = f"a wrong decline {goal.wrong_decline:g}"
        return (
            f"Stated: a missed row costs {goal.missed:g}, a review {goal.review:g}, "
            f"{wrong}. These thresholds cost least there: {thresholds.cost:,.10g}, "
            f"where to approve all costs {thresholds.positives * goal.missed:,.10g}."
        )
    if goal == Rates():
        return (
            "No cost and no rate was stated: about as many rows are reviewed as have "
            "the outcome, and no score declines."
        )
    share = "about as many rows as have the outcome"
    if goal.review is not None:
        share = f"at most {_percent(goal.review)} of the rows"
    most = f"the highest {_percent(goal.decline)}" if goal.decline else "none"
    return f"Stated: review {share}, decline {most}."


def _effect(decision: str, rows: int, *, found: int, of: int) -> str:
    """Describe the effect of a threshold on the rows that it was chosen on."""
    precision = f", {_percent(found / rows)}" if rows else ""
    return (
        f"{decision}: {rows:,} rows ({_percent(rows / of)}), {found:,} of "
        f"them positive{precision}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
