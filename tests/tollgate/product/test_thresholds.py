"""Thresholds of a new product follow from stated costs or rates."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from tollgate.errors import InputError
from tollgate.policy import Policy, RowFacts, decide, load_policy
from tollgate.product.choices import ProductChoices
from tollgate.product.files import build_features, criterion_text, write_texts
from tollgate.product.model import train_model
from tollgate.product.plan import make_plan
from tollgate.product.splitting import describe, split
from tollgate.product.thresholds import (
    Costs,
    Goal,
    Rates,
    Thresholds,
    build_goal,
    choose_thresholds,
)

ROWS, POSITIVES = 100_000, 170  # 0.17 %, as frauds among payments by card
NOTHING: dict[str, float | None] = dict.fromkeys(
    ("missed", "review", "wrong_decline", "review_rate", "decline_rate")
)


def picked(score: np.ndarray, label: np.ndarray, goal: Goal) -> Thresholds:
    """Choose thresholds on some rows."""
    return choose_thresholds(
        score, label.astype(np.int8), goal=goal, origin="drawn by chance"
    )


@pytest.mark.parametrize(
    ("rate", "reviewed", "low", "high"),
    [(0.08, 30, 0.500047743, 0.9), (0.13, 130, 0.1, 0.500047505)],
)
def test_scores_that_a_conversion_may_swap_get_the_same_decision(
    rate: float, reviewed: int, low: float, high: float
) -> None:
    """A threshold does not lie between two scores that are one float32 apart."""
    score = np.repeat([0.9, 0.500047743, 0.500047505, 0.1], [30, 50, 50, 870])
    found = picked(score, score > 0.6, Rates(review=rate))
    assert found.reviewed == reviewed
    assert low < found.review < high


def cost_of(
    score: np.ndarray,
    label: np.ndarray,
    *,
    review: float,
    decline: float,
    costs: tuple[float, float, float],
) -> float:
    """Add up what two thresholds cost, row by row as a policy decides them."""
    missed, looked, wrong = costs
    declined = score >= decline
    reviewed = (score >= review) & ~declined
    passed = ~declined & ~reviewed
    return float(
        missed * label[passed].sum()
        + looked * reviewed.sum()
        + wrong * (label[declined] == 0).sum()
    )


def decided(policy: Policy, score: np.ndarray) -> np.ndarray:
    """Decide rows that differ in their score only: 0 approve, 1 review, 2 decline."""
    chance = score.astype(np.float32)
    rows = len(chance)
    facts = RowFacts(
        probabilities=np.stack([1 - chance, chance], axis=1),
        features=np.zeros((rows, 7), np.float32),
        cents=np.full(rows, 100),
        degraded=np.zeros(rows, np.uint32),
        event_time_us=np.zeros(rows, np.int64),
        list_hits=np.zeros(rows, np.uint32),
        fields={},
    )
    return decide(facts, policy=policy).decision


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a table of payments, 0.17 % of them fraud, most of it easy to detect."""
    chance = np.random.default_rng(17)
    label = np.zeros(ROWS, np.int64)
    label[chance.choice(ROWS, POSITIVES, replace=False)] = 1
    easy = label * (chance.random(ROWS) < 0.8)
    columns = {
        f"v{at}": (chance.normal(size=ROWS) + shift * easy).astype(np.float32)
        for at, shift in enumerate([3.0, -2.5, 2.0, 0.0, 0.0])
    }
    columns["amount"] = np.exp(chance.normal(3, 1.2, ROWS)).round(2)
    path = tmp_path_factory.mktemp("rare") / "rare.parquet"
    pl.DataFrame({**columns, "class": label}).write_parquet(path)
    return path


@pytest.fixture(scope="module")
def held_out_scores(
    rare: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the scores of boosting on the held-out fifth, as float32."""
    plan = make_plan(ProductChoices(product="rare", table=rare, label="class"))
    folder = tmp_path_factory.mktemp("spec")
    missing = {one.name: float("nan") for one in plan.fields}
    spec, rows, features, _ = build_features(
        plan, folder, fields=plan.fields, missing=missing
    )
    label, time_us = rows.history.label, rows.history.event_time_us
    train, test = split(label, time_us=time_us, spec=spec)
    assert not (train & test).any()
    model, _ = train_model(
        features[train], label[train], spec=spec, kind="boosting", seed=0
    )
    score = np.asarray(model.predict(features[test])[:, 1], np.float32)
    return score.astype(np.float64), label[test], describe(test, time_us=time_us)


COSTS = [(100, 2, 50), (20, 5, 5), (500, 1, 1000), (30, 2, None)]


@pytest.mark.parametrize("costs", COSTS)
def test_no_other_thresholds_cost_less(
    held_out_scores: tuple[np.ndarray, np.ndarray, str],
    costs: tuple[float, float, float | None],
) -> None:
    """Every pair of cuts between the 300 highest scores is tried, one by one."""
    score, label, _ = held_out_scores
    chosen = picked(score, label, Costs(*costs))
    plain = (costs[0], costs[1], costs[2] or 0.0)
    cuts = np.unique(score)[-300:]
    top = score >= cuts[0]
    rest = plain[0] * label[~top].sum()  # approved, whatever the cuts are
    declines = [np.inf]
    if costs[2] is not None:
        declines += [one for one in cuts if (score >= one).sum() >= 20]
    least = min(
        rest
        + cost_of(score[top], label[top], review=review, decline=decline, costs=plain)
        for review, decline in itertools.product(cuts, declines)
        if review <= decline
    )
    decline = np.inf if chosen.decline is None else chosen.decline
    found = cost_of(score, label, review=chosen.review, decline=decline, costs=plain)
    assert found == least == chosen.cost
    assert found < label.sum() * costs[0]  # than to approve all
    assert chosen.reviewed == ((score >= chosen.review) & (score < decline)).sum()
    assert chosen.found_declined == label[score >= decline].sum()


@pytest.mark.parametrize(
    "goal", [Rates(), Rates(0.001, 0.001), Rates(0.01), Costs(100, 2, 50)]
)
def test_policy_comment_has_its_effect_on_the_held_out_rows(
    rare: Path,
    held_out_scores: tuple[np.ndarray, np.ndarray, str],
    tmp_path: Path,
    goal: Goal,
) -> None:
    """The comment, the decisions and an independent count agree."""
    score, label, origin = held_out_scores
    plan = make_plan(
        ProductChoices(product="rare", table=rare, label="class", goal=goal)
    )
    missing = {one.name: float("nan") for one in plan.fields}
    spec, *_ = build_features(plan, tmp_path, fields=plan.fields, missing=missing)
    chosen = choose_thresholds(score, label, goal=goal, origin=origin)
    write_texts(
        plan,
        tmp_path,
        spec=spec,
        thresholds=chosen,
        kind="boosting",
        seen=False,
        wide=False,
    )
    path = tmp_path / "rare_decision" / "1" / "policy.yaml"
    text = path.read_text()
    policy = load_policy(path, feature_names=spec.feature_names, fields=spec.fields)
    decision = decided(policy, score)
    flat = " ".join(re.sub("^# ?", "", text, flags=re.MULTILINE).split())
    assert f"on {len(score):,} held-out rows ({origin}), {label.sum()} of" in flat
    assert "The model was not trained on them" in flat
    for level, name in ((1, "review"), (2, "decline")):
        rows, found = (decision == level).sum(), label[decision == level].sum()
        if name in yaml.safe_load(text)["thresholds"]:
            share = f"{100 * rows / len(score):.4g} %"
            right = f"{100 * found / rows:.4g} %"
            words = f"{name}: {rows:,} rows ({share}), {found:,} of them positive"
            assert f"{words}, {right}." in flat
        else:
            assert not rows
            assert f"{name}: left out" in flat


def test_default_reviews_as_many_as_are_bad_and_declines_none(
    held_out_scores: tuple[np.ndarray, np.ndarray, str],
) -> None:
    """About 34 of 20,000 rows with 34 frauds."""
    score, label, _ = held_out_scores
    chosen = picked(score, label, Rates())
    assert (chosen.rows, chosen.positives) == (20_000, 34)
    assert chosen.decline is None
    assert 25 <= chosen.reviewed <= 34
    assert chosen.found_reviewed > 0.1 * chosen.reviewed  # 0.17 % of all rows are bad
    assert decided_by(chosen, np.array([1.0])) == [1]


def decided_by(chosen: Thresholds, score: np.ndarray) -> list[int]:
    """Compare scores with two thresholds."""
    decline = np.inf if chosen.decline is None else chosen.decline
    return [int(one >= chosen.review) + int(one >= decline) for one in score]


def test_rates_are_shares_of_the_held_out_rows() -> None:
    """Of a thousand different scores the highest 30 are declined, then 100 reviewed."""
    score = np.random.default_rng(1).permutation(1000) / 1000
    chosen = picked(score, score > 0.5, Rates(0.1, 0.03))
    assert (chosen.review, chosen.decline) == (0.8695, 0.9695)
    assert (chosen.reviewed, chosen.declined) == (100, 30)


def test_equal_scores_get_the_same_decision() -> None:
    """At most the stated share is declined; if all are equal, all are reviewed."""
    score = np.repeat([0.9, 0.5, 0.1], [45, 55, 900])
    label = np.zeros(1000, np.int8)
    chosen = picked(score, label, Rates(0.01, 0.03))
    assert (chosen.decline, chosen.declined, chosen.reviewed) == (None, 0, 45)
    chosen = picked(score, label, Rates(0.055, 0.06))
    assert (chosen.declined, chosen.reviewed) == (45, 55)
    chosen = picked(np.full(100, 0.3), label[:100], Rates())
    assert (chosen.review, chosen.reviewed, chosen.decline) == (0.0, 100, None)


def test_scores_of_exactly_one_are_not_declined_where_nothing_is() -> None:
    """45 of 100,000 rows have such a score; a threshold of 1 would decline them."""
    score = np.append(np.full(45, 1.0), np.random.default_rng(3).random(99_955) * 0.3)
    label = np.zeros(100_000, np.int8)
    label[:40] = 1
    for goal in (Rates(0.001), Costs(100, 2)):
        chosen = picked(score, label, goal)
        assert set(decided_by(chosen, score[:45])) == {1}


def test_fewer_than_20_rows_are_not_declined() -> None:
    """The highest 19 rows, all bad, are reviewed; 20 are declined."""
    score = np.arange(1000) / 1000
    for bad, declined in ((19, 0), (20, 20)):
        chosen = picked(score, score >= 1 - bad / 1000, Costs(100, 2, 50))
        assert chosen.declined == declined
        assert chosen.reviewed == bad - declined


@pytest.mark.parametrize(
    ("goal", "ends"),
    [
        (
            Rates(),
            "No cost and no rate was stated: about as many rows are reviewed as have "
            "the outcome, and no score declines.",
        ),
        (
            Rates(0.05, 0.03),
            "Stated: review at most 5 % of the rows, decline the highest 3 %.",
        ),
        (
            Rates(0.05, 0.005),
            " No score declines: 0.5 % of 1,000 rows are 5, and a "
            "threshold must decline at least 20.",
        ),
        (Costs(100, 2, 50), ", where to approve all costs 5,000."),
        (
            Costs(100, 2),
            "a review 2, and no cost of a wrong decline, so no score "
            "declines. These thresholds cost least there: 100, where to approve all "
            "costs 5,000.",
        ),
        (
            Costs(100, 2, 1e6),
            " No score declines: no threshold that declines at least "
            "20 of the rows costs less.",
        ),
    ],
)
def test_criterion_is_described_with_the_reason_why_nothing_is_declined(
    goal: Goal, ends: str
) -> None:
    """Of a thousand different scores, the 50 highest are bad."""
    score = np.arange(1000) / 1000
    label = score >= 0.95
    if goal == Costs(100, 2, 1e6):
        label[985] = False  # declining the row would cost a million
    text = criterion_text(picked(score, label, goal))
    assert text.endswith(ends), text


def test_equal_scores_are_the_reason_why_nothing_is_declined() -> None:
    """The highest 45 rows have one score, and at most 30 may be declined."""
    score = np.repeat([0.9, 0.5, 0.1], [45, 55, 900])
    chosen = picked(score, np.zeros(1000, np.int8), Rates(0.01, 0.03))
    assert criterion_text(chosen) == (
        "Stated: review at most 1 % of the rows, decline the highest 3 %. No score "
        "declines: 3 % of 1,000 rows are 30, and no threshold declines 20 to 30, since "
        "scores are equal."
    )


def test_threshold_separates_very_close_scores() -> None:
    """There is one between two scores that differ by 1e-9."""
    score = np.arange(1, 1001).astype(np.float32) * np.float32(1e-9)
    chosen = picked(score, score > 9e-7, Rates(0.1))
    assert chosen.reviewed == 100
    assert float(score[899]) < chosen.review < float(score[900])


def test_costs_at_which_no_row_is_worth_a_review_are_refused() -> None:
    """Otherwise the policy would approve all rows."""
    label = np.arange(1000) % 100 == 0
    score = np.random.default_rng(2).random(1000)
    with pytest.raises(InputError, match="no held-out row of 1,000 is worth a review"):
        picked(score, label, Costs(2, 1))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"missed": 10, "review_rate": 0.1}, "cost_missed, review_rate: states a"),
        ({"missed": 10}, "cost_missed: needs the cost of a review as well"),
        (
            {"wrong_decline": 10, "review": 1},
            "cost_review: needs the cost of a missed",
        ),
        ({"missed": 0, "review": 1}, "cost_missed: 0 is not a number above 0"),
        ({"missed": 1, "review": float("nan")}, "cost_review: nan is not a number"),
        ({"review_rate": 1.5}, "review_rate: 1.5 is not a share from 0 to 1"),
        ({"decline_rate": -1}, "decline_rate: -1 is not a share from 0 to 1"),
        ({"review_rate": 0.7, "decline_rate": 0.7}, "are more than all rows"),
        ({"review_rate": 0}, "is 0, and so is the rate of declines"),
    ],
)
def test_contradictory_criteria_are_refused(
    given: dict[str, float], words: str
) -> None:
    """The line names the option and the value."""
    with pytest.raises(InputError) as caught:
        build_goal(**(NOTHING | given))
    assert words in str(caught.value)


def test_stated_options_become_the_criterion() -> None:
    """Without options the criterion has neither cost nor rate."""
    assert build_goal(**NOTHING) == Rates() == Rates(None, 0.0)
    both = NOTHING | {"review_rate": 0.0, "decline_rate": 0.02}
    assert build_goal(**both) == Rates(0.0, 0.02)
    costs = NOTHING | {"missed": 10, "review": 1}
    assert build_goal(**costs) == Costs(10, 1, None)
