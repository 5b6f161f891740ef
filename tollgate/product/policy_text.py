"""Write the first policy.yaml and slo.yaml of a product."""

from __future__ import annotations

from tollgate.product.plan import Plan
from tollgate.product.thresholds import Chosen, Costs, Rates
from tollgate.product.yaml_text import comment, number, scalar


def policy_text(plan: Plan, chosen: Chosen, *, seen: bool) -> str:
    """
    Write policy.yaml.

    Args:
        plan: The product.
        chosen: Its thresholds.
        seen: True if the model may have been trained on the rows they come from.
    """
    other, outcome, product = plan.other, plan.outcome, plan.asked.product
    decline = text = ""
    if chosen.decline is not None:
        decline = f"\n  decline: {number(chosen.decline)}"
        text = "\n  SCORE_DECLINE: The score is very high."
    return f"""\
# How a score of `{product}` becomes a decision. Versions are immutable, so edit a copy
# of this folder as version 2; `tollgate policy check` reads it as a server does,
# `tollgate policy simulate` tells what it would have decided. All keys: docs/policy.md.
version: 1
product: {scalar(product)}

# What the model's probabilities are of. The score is the probability of {outcome}: that
# {_quoted(plan.asked.label)} is {_quoted(plan.label.positive)}.
labels: [{other}, {outcome}]
score: {outcome}

# A score at or above a threshold gives that decision; below, it is approve. Without
# `decline` no score declines.
{_origin(chosen, seen=seen)}
thresholds:
  review: {number(chosen.review)}{decline}

# What to decide when the model's output is not a probability.
fallback:
  model_output: review

# Rules of your own, tried in order on top of the thresholds, for example
#   - name: no_word_of_it
#     owner: you
#     when: {{FIELD_MISSING: true}}
#     at_least: review
#     code: INCOMPLETE          # and its text below
rules: []

# What a reason code means in words. An answer also names what raised the score.
reasons:
  SCORE_REVIEW: The score is high.{text}
  MODEL_UNAVAILABLE: The model gave no usable score.
{_sensitive(plan)}"""


def _sensitive(plan: Plan) -> str:
    """List the attributes that must not influence decisions."""
    names = [scalar(one) for one in plan.asked.sensitive]
    if not names:
        return ""
    return f"""
# What nobody may be judged by: no input may have such a name, and the model's card
# tells its errors by them.
sensitive: [{", ".join(names)}]
"""


def _quoted(text: str) -> str:
    """Format a text for a comment: on one line, and not too long."""
    return repr(text)[:60]


def _origin(chosen: Chosen, *, seen: bool) -> str:
    """Describe the origin of the thresholds, and their effect there."""
    kind = "rows" if seen else "held-out rows"
    rows = (
        f"Chosen on {chosen.rows:,} {kind} ({chosen.origin}), "
        f"{chosen.positives:,} of them positive. "
    )
    if seen:
        rows += "The model came from elsewhere and may have been trained on them."
    else:
        rows += "The model was not trained on them, but new rows may fare a bit worse."
    if chosen.few:
        rows += " So few positive rows say little: others would give other thresholds."
    review = _did("review", chosen.reviewed, chosen.found_reviewed, chosen=chosen)
    decline = "decline: left out, no score declines."
    if chosen.decline is not None:
        decline = _did("decline", chosen.declined, chosen.found_declined, chosen=chosen)
    return "\n".join(map(comment, (rows, stated(chosen), review, decline)))


def stated(chosen: Chosen) -> str:
    """Describe in one sentence the criterion for the thresholds."""
    goal = chosen.goal
    if isinstance(goal, Costs):
        wrong = "and no cost of a wrong decline, so no score declines"
        if goal.wrong_decline is not None:
            wrong = f"a wrong decline {goal.wrong_decline:g}"
        return (
            f"Stated: a missed row costs {goal.missed:g}, a review {goal.review:g}, "
            f"{wrong}. These thresholds cost least there: {chosen.cost:,.10g}, where "
            f"to approve all costs {chosen.positives * goal.missed:,.10g}."
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


def _did(what: str, rows: int, found: int, *, chosen: Chosen) -> str:
    """Describe the effect of a threshold on the rows that it was chosen on."""
    precision = f", {_percent(found / rows)}" if rows else ""
    return (
        f"{what}: {rows:,} rows ({_percent(rows / chosen.rows)}), {found:,} of them "
        f"positive{precision}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def slo_text(product: str) -> str:
    """Write slo.yaml."""
    return f"""\
# What {product} promises its callers, and how the time for it is spent.
# `tollgate budget` measures it; `tollgate publish` refuses a model that takes more than
# its layer; `tollgate check` holds the queue delays against it. Keys: docs/budget.md.

latency_objective_ms: 50    # the promise (SLA)
latency_target_ms: 20       # what we aim at (SLO)
objective_percent: 99.9     # of the answers keep the promise

# The layers of the promise, ms. What a layer takes is its 99th percentile.
budget_ms:
  request: 2
  features: 15              # 4.5 of them in the queue, waiting for other requests
  model: 20
  post_processing: 3
  response: 2
  reserve: 8
"""
