"""Measures agree with scikit-learn, with plain pandas and with the published book."""

from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tollgate.errors import InputError
from tollgate.evaluation import (
    average_precision,
    card_precision,
    day_of,
    evaluate,
    known_defrauded,
    roc_auc,
    split,
)

SHARED = Path(__file__).parents[3] / "shared"
EPOCH = date(1970, 1, 1)


def scores(rows, *, levels, seed):
    """Make labels and scores that are often equal."""
    random = np.random.default_rng(seed)
    label = (random.random(rows) < 0.1).astype(np.int8)
    label[:2] = 0, 1
    score = random.integers(0, levels, rows) / levels + label * 0.1
    return label, score.astype(np.float32)


@pytest.mark.parametrize("levels", [1, 2, 10, 1_000_000])
@pytest.mark.parametrize("seed", range(5))
def test_curves_agree_with_scikit_learn_ties_included(levels, seed):
    """From all scores equal to hardly any."""
    label, score = scores(2000, levels=levels, seed=seed)
    assert roc_auc(label, score) == pytest.approx(
        roc_auc_score(label, score), abs=1e-12
    )
    assert average_precision(label, score) == pytest.approx(
        average_precision_score(label, score), abs=1e-12
    )


def test_curves_by_hand():
    """Two frauds, three others: six pairs, one of them a tie."""
    label, score = [1, 0, 1, 0, 0], [0.9, 0.8, 0.8, 0.1, 0.2]
    # pairs: 0.9 beats three; 0.8 ties one and beats two
    assert roc_auc(label, score) == (3 + 2.5) / 6
    # at 0.9: recall 1/2 precision 1; at 0.8: recall 1 precision 2/3
    assert average_precision(label, score) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


def pandas_card_precision(frame, *, k):
    """Compute card precision the plain way: a loop over days, sets, group-by."""
    found, shares = set(), []
    for _, today in frame.groupby("day"):
        today = today[~today.customer.isin(found)]
        cards = today.groupby("customer")[["score", "label"]].max()
        top = cards.sort_values("score", ascending=False, kind="stable").head(k)
        caught = set(top.index[top.label == 1])
        shares.append(len(caught) / k)
        found |= caught
    return float(np.mean(shares))


@pytest.mark.parametrize("k", [1, 10, 100, 10_000])
@pytest.mark.parametrize("levels", [3, 1_000_000])
def test_card_precision_agrees_with_plain_pandas(levels, k):
    """With ties and without, with more and fewer customers than are checked."""
    label, score = scores(5000, levels=levels, seed=k)
    random = np.random.default_rng(k)
    frame = pd.DataFrame(
        {
            "label": label,
            "score": score,
            "customer": random.integers(0, 400, 5000).astype(str),
            "day": random.integers(17_000, 17_007, 5000),
        }
    )
    ours = card_precision(
        label, score, customer=frame.customer.to_numpy(), day=frame.day, k=k
    )
    assert ours == pytest.approx(pandas_card_precision(frame, k=k), abs=1e-12)


def test_card_precision_by_hand():
    """A customer is judged by its worst row and is found only once."""
    #            day 1            day 2
    customer = ["a", "a", "b", "c", "a", "b", "c"]
    day = [1, 1, 1, 1, 2, 2, 2]
    label = [0, 1, 0, 0, 1, 1, 0]
    score = [0.9, 0.1, 0.8, 0.7, 0.99, 0.3, 0.5]
    # day 1: a (0.9, defrauded by its other row) is found; day 2: c is checked
    assert card_precision(label, score, customer=customer, day=day, k=1) == 0.5
    # day 1: a of a, b; day 2: b of c, b
    assert card_precision(label, score, customer=customer, day=day, k=2) == 0.5


def test_order_of_rows_does_not_matter():
    """Permuted rows give the same measures, ties included."""
    label, score = scores(3000, levels=5, seed=1)
    random = np.random.default_rng(1)
    customer, day = random.integers(0, 300, 3000), random.integers(0, 7, 3000)
    order = random.permutation(3000)
    first = evaluate(label, score, customer=customer, day=day)
    again = evaluate(
        label[order], score[order], customer=customer[order], day=day[order]
    )
    assert first.card_precision == again.card_precision
    assert first.roc_auc == pytest.approx(again.roc_auc, abs=1e-12)
    assert first.average_precision == pytest.approx(again.average_precision, abs=1e-12)
    assert (first.rows, first.frauds) == (3000, int(label.sum()))


@pytest.mark.parametrize(
    ("label", "score", "words"),
    [
        ([0, 0], [0.1, 0.2], "labels: need both classes"),
        ([1, 1], [0.1, 0.2], "labels: need both classes"),
        ([0, 1], [0.1, np.nan], "scores: 1 are not finite"),
        ([0, 1], [0.1, np.inf], "scores: 1 are not finite"),
        ([0, 1], [0.1], "scores: shape (1,) does not match labels (2,)"),
        ([], [], "labels: need both classes"),
    ],
)
def test_what_cannot_be_judged_is_refused(label, score, words):
    """A measure is never NaN."""
    for measure in (roc_auc, average_precision):
        with pytest.raises(InputError) as caught:
            measure(label, score)
        assert str(caught.value).startswith(words)


def history(rows=20_000, *, seed=0):
    """Make days, customers and rare frauds around three weeks."""
    random = np.random.default_rng(seed)
    day = random.integers(17_735, 17_765, rows)
    customer = random.integers(0, 500, rows)
    label = (random.random(rows) < 0.01).astype(np.int8)
    return day, customer, label


@pytest.mark.parametrize("delay_days", [0, 1, 7])
def test_known_customers_agree_with_the_books_rule(delay_days):
    """Day by day: frauds of training, then one more day's frauds per test day."""
    day, customer, label = history()
    first, train_days, test_days = 17_738, 7, 7
    chosen = split(
        day,
        customer,
        label=label,
        train_start=date.fromordinal(EPOCH.toordinal() + first),
        delay_days=delay_days,
    )
    fraud = label == 1
    in_train = (day >= first) & (day < first + train_days)
    known = set(customer[fraud & in_train])
    expected = np.zeros(len(day), dtype=bool)
    for number in range(test_days):
        known |= set(customer[fraud & (day == first + train_days + number - 1)])
        today = day == first + train_days + delay_days + number
        expected |= today & ~np.isin(customer, list(known))
    assert np.array_equal(chosen.train, in_train)
    assert np.array_equal(chosen.test, expected)


def test_a_fraud_before_training_does_not_make_a_customer_known():
    """As in the book: only frauds from the first training day on count."""
    known = known_defrauded(
        [5, 20, 5, 20, 12, 20], ["a", "a", "b", "b", "c", "c"],
        label=[1, 0, 0, 0, 1, 0], first_day=10, delay_days=7,
    )  # fmt: skip
    assert known.tolist() == [False, False, False, False, False, True]


def test_a_fraud_is_known_after_the_delay_and_not_before():
    """A fraud of day 10 with a delay of 7 days is known from day 18 on."""
    known = known_defrauded(
        [10, 17, 18], ["a"] * 3, label=[1, 0, 0], first_day=0, delay_days=7
    )
    assert known.tolist() == [False, False, True]


def test_days_outside_the_history_are_refused():
    """A split without rows says which part is empty."""
    day, customer, label = history()
    with pytest.raises(InputError, match="no row falls into the train days"):
        split(day, customer, label=label, train_start=date(2020, 1, 1))
    with pytest.raises(InputError, match="no row falls into the test days"):
        split(day, customer, label=label, train_start=date(2018, 8, 15))


def test_days_are_utc_days():
    """The last microsecond of a day belongs to it, before 1970 too."""
    instants = np.array(
        ["2018-07-25T00:00", "2018-07-25T23:59:59.999999", "1969-12-31T23:59"],
        dtype="datetime64[us]",
    )
    assert day_of(instants.astype(np.int64)).tolist() == [17_737, 17_737, -1]


def test_the_books_logistic_regression_is_met():
    """AUC 0.871, AP 0.606, CP@100 0.291 on the handbook's own three weeks."""
    if not SHARED.exists():
        pytest.skip("needs ../shared, the handbook's data, which is not ours to ship")
    frame = pl.read_parquet(
        SHARED / "data/handbook/features_2018-07-25_2018-08-14.parquet"
    )
    day = day_of(frame["TX_DATETIME"].dt.timestamp("us").to_numpy())
    customer, label = frame["CUSTOMER_ID"].to_numpy(), frame["TX_FRAUD"].to_numpy()
    chosen = split(day, customer, label=label, train_start=date(2018, 7, 25))
    assert (chosen.train.sum(), label[chosen.train].sum()) == (67_240, 598)
    assert (chosen.test.sum(), label[chosen.test].sum()) == (58_264, 385)
    features = frame.select(
        pl.col("TX_AMOUNT"), pl.col("^TX_DURING_.*$"), pl.col("^.*_WINDOW$")
    ).to_numpy()
    model = make_pipeline(StandardScaler(), LogisticRegression(random_state=0))
    model.fit(features[chosen.train], label[chosen.train])
    found = evaluate(
        label[chosen.test],
        model.predict_proba(features[chosen.test])[:, 1],
        customer=customer[chosen.test],
        day=day[chosen.test],
    )
    assert found.roc_auc == pytest.approx(0.871, abs=0.002)
    assert found.average_precision == pytest.approx(0.606, abs=0.002)
    assert found.card_precision == pytest.approx(0.291, abs=0.002)
