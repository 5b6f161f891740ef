"""Write the first policy.yaml and slo.yaml of a product."""

from __future__ import annotations

from tollgate.product.plan import Plan
from tollgate.product.thresholds import Chosen
from tollgate.product.yaml_text import number, scalar


def policy_text(plan: Plan, chosen: Chosen, *, seen: bool) -> str:
    """
    Write policy.yaml.

    Args:
        plan: The product.
        chosen: Its thresholds.
        seen: Whether the model may have been trained on the rows they come from.
    """
    other, outcome = plan.other, plan.outcome
    product, told = plan.asked.product, _told(chosen)
    if seen:
        told += "\n# The model came from elsewhere and may have seen these rows."
    return f"""\
# How a score of `{product}` becomes a decision. Versions are immutable, so edit a copy
# of this folder as version 2; `tollgate policy check` reads it as a server does,
# `tollgate policy simulate` tells what it would have decided. All keys: docs/policy.md.
version: 1
product: {scalar(product)}

# What the model's probabilities are of. The score is the probability of {outcome}: that
# {_quoted(plan.asked.label)} is {_quoted(plan.label.positive)}. A high one is declined.
labels: [{other}, {outcome}]
score: {outcome}

# A score at or above a threshold gives that decision; below both it is approve.
{told}
thresholds:
  review: {number(chosen.review)}
  decline: {number(chosen.decline)}

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

# What a reason code means in words. What raised the score is told beside it.
reasons:
  SCORE_REVIEW: The score is high.
  SCORE_DECLINE: The score is very high.
  MODEL_UNAVAILABLE: The model gave no usable score.
{_sensitive(plan)}"""


def _sensitive(plan: Plan) -> str:
    """Name what nobody may be judged by."""
    names = [scalar(one) for one in plan.asked.sensitive]
    if not names:
        return ""
    return f"""
# What nobody may be judged by: no input may have such a name, and the model's card
# tells its errors by them.
sensitive: [{", ".join(names)}]
"""


def _quoted(text: str) -> str:
    """Write a text into a comment: on one line, and not too long."""
    return repr(text)[:60]


def _told(chosen: Chosen) -> str:
    """Say where the thresholds come from, and what they do."""
    head = (
        f"# Chosen on {chosen.rows:,} held-out rows, {chosen.positives:,} of them "
        "positive."
    )
    declined = (
        f"# decline: the lowest score from which 3 of 4 rows are positive; "
        f"{chosen.declined:,} rows,\n# {chosen.found_declined:,} of them positive."
    )
    if chosen.decline >= 1:
        declined = (
            "# decline: from no score on are 3 of 4 rows positive, so nothing is "
            "declined."
        )
    reviewed = (
        f"# review: the tenth of all rows that comes next; {chosen.reviewed:,} rows, "
        f"{chosen.found_reviewed:,} of them positive."
    )
    return f"{head}\n{declined}\n{reviewed}"


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
