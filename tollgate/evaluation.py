"""
Judge scores with the Fraud Detection Handbook's split, AUC, AP and card precision.

Source: Le Borgne, Siblini, Lebichot, Bontempi (2022), "Reproducible Machine Learning
for Credit Card Fraud Detection - Practical Handbook", chapters 3 and 4.
"""

from __future__ import annotations

from datetime import date
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError

DAY_US = 86_400_000_000
TRAIN_DAYS = 7
DELAY_DAYS = 7  # a fraud becomes known a week later
TEST_DAYS = 7
CARDS_CHECKED = 100  # cards a day that investigators can check


class Split(msgspec.Struct, frozen=True, eq=False):
    """Training rows and test rows of a history; bool [N] each."""

    train: npt.NDArray[np.bool_]
    test: npt.NDArray[np.bool_]


class Evaluation(msgspec.Struct, frozen=True):
    """Measures of how well scores rank frauds, with the size of the judged sample."""

    rows: int
    frauds: int
    roc_auc: float
    average_precision: float
    card_precision: float


def day_of(event_time_us: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Number the days (since 1970-01-01) of event times (µs UTC); int64 [N]."""
    return np.asarray(event_time_us, dtype=np.int64) // DAY_US


def split(
    day: npt.ArrayLike,
    customer: npt.ArrayLike,
    *,
    label: npt.ArrayLike,
    train_start: date,
    train_days: int = TRAIN_DAYS,
    delay_days: int = DELAY_DAYS,
    test_days: int = TEST_DAYS,
) -> Split:
    """
    Split a history into training days, a delay, and test days.

    Test rows of customers that were known as defrauded on that day are left out.

    Args:
        day: Days since 1970-01-01; int [N].
        customer: Any sortable identifiers; [N].
        label: 1 for fraud; int [N].
        train_start: First training day, UTC.
        delay_days: Days between training and test: the delay of labels.

    Raises:
        InputError: The training or the test days have no rows.
    """
    day = np.asarray(day, dtype=np.int64)
    first = (train_start - date(1970, 1, 1)).days
    first_test = first + train_days + delay_days
    train = (day >= first) & (day < first + train_days)
    test = (day >= first_test) & (day < first_test + test_days)
    test &= ~known_defrauded(
        day, customer, label=label, first_day=first, delay_days=delay_days
    )
    for name, mask in (("train", train), ("test", test)):
        if not mask.any():
            raise InputError(
                "history", f"no row falls into the {name} days", where=name
            )
    return Split(train=train, test=test)


def known_defrauded(
    day: npt.ArrayLike,
    customer: npt.ArrayLike,
    *,
    label: npt.ArrayLike,
    first_day: int,
    delay_days: int = DELAY_DAYS,
) -> npt.NDArray[np.bool_]:
    """
    Mark the rows whose customer was known as defrauded on that day; bool [N].

    A fraud of day d is known from day d + delay_days + 1 on.

    Args:
        day: Days since 1970-01-01; int [N].
        customer: Any sortable identifiers; [N].
        label: 1 for fraud; int [N].
        first_day: Frauds before this day are ignored.
        delay_days: Delay of labels, days.
    """
    day = np.asarray(day, dtype=np.int64)
    names, code = np.unique(np.asarray(customer), return_inverse=True)
    fraud = (np.asarray(label) == 1) & (day >= first_day)
    never = np.iinfo(np.int64).max
    first_fraud = np.full(names.size, never)
    np.minimum.at(first_fraud, code[fraud], day[fraud])
    return first_fraud[code] < day - delay_days


def roc_auc(label: npt.ArrayLike, score: npt.ArrayLike) -> float:
    """
    Compute the area under the ROC curve.

    It is the share of (fraud, no fraud) pairs in which the fraud has the higher
    score; a tie counts one half (Mann-Whitney, mid-ranks).

    Args:
        label: 1 for fraud, 0 otherwise; [N].
        score: Higher is more suspicious; [N].

    Raises:
        InputError: Labels hold one class only, or a score is not finite.
    """
    positive, value = _checked(label, score)
    _, code, count = np.unique(value, return_inverse=True, return_counts=True)
    mid_rank = (np.cumsum(count) - (count - 1) / 2)[code]
    frauds = int(positive.sum())
    wins = float(mid_rank[positive].sum()) - frauds * (frauds + 1) / 2
    return wins / (frauds * (int(positive.size) - frauds))


def average_precision(label: npt.ArrayLike, score: npt.ArrayLike) -> float:
    """
    Compute the average precision.

    It is the sum of (recall gained) x (precision) over the distinct scores in
    descending order, without interpolation.

    Args:
        label: 1 for fraud, 0 otherwise; [N].
        score: Higher is more suspicious; [N].

    Raises:
        InputError: Labels hold one class only, or a score is not finite.
    """
    positive, value = _checked(label, score)
    order = np.argsort(-value, kind="stable")
    value, positive = value[order], positive[order]
    last_of_tie = np.append(np.flatnonzero(np.diff(value)), value.size - 1)
    found = np.cumsum(positive)[last_of_tie]
    precision = found / (last_of_tie + 1)
    gained = np.diff(found, prepend=0) / found[-1]
    return float(gained @ precision)


def card_precision(
    label: npt.ArrayLike,
    score: npt.ArrayLike,
    *,
    customer: npt.ArrayLike,
    day: npt.ArrayLike,
    k: int = CARDS_CHECKED,
) -> float:
    """
    Compute the share of truly defrauded customers among the k checked each day.

    Per day a customer has its highest score, and is defrauded when any of its
    rows is. The k highest are checked (equal scores: the lower identifier first);
    defrauded customers found are left out on later days. The mean over the days.

    Args:
        label: 1 for fraud, 0 otherwise; [N].
        score: Higher is more suspicious; [N].
        customer: Any sortable identifiers; [N].
        day: Any sortable day numbers; [N].
        k: Customers checked a day; the divisor even when there are fewer.

    Raises:
        InputError: Labels hold one class only, or a score is not finite.
    """
    positive, value = _checked(label, score)
    names, code = np.unique(np.asarray(customer), return_inverse=True)
    days, day_code = np.unique(np.asarray(day), return_inverse=True)
    pair, pair_code = np.unique(day_code * names.size + code, return_inverse=True)
    highest = np.full(pair.size, -np.inf)
    np.maximum.at(highest, pair_code, value)
    defrauded = np.zeros(pair.size, dtype=bool)
    np.logical_or.at(defrauded, pair_code, positive)
    found = np.zeros(names.size, dtype=bool)
    bounds = np.searchsorted(pair, np.arange(days.size + 1) * names.size)
    for start, stop in pairwise(bounds):
        card = pair[start:stop] % names.size
        open_cards = start + np.flatnonzero(~found[card])
        top = open_cards[np.argsort(-highest[open_cards], kind="stable")[:k]]
        found[pair[top[defrauded[top]]] % names.size] = True
    return int(found.sum()) / (k * int(days.size))


def evaluate(
    label: npt.ArrayLike,
    score: npt.ArrayLike,
    *,
    customer: npt.ArrayLike,
    day: npt.ArrayLike,
    k: int = CARDS_CHECKED,
) -> Evaluation:
    """
    Judge the scores of test rows by all three measures.

    Args and errors are those of `card_precision`.
    """
    flags = np.asarray(label)
    return Evaluation(
        rows=int(flags.size),
        frauds=int((flags == 1).sum()),
        roc_auc=roc_auc(label, score),
        average_precision=average_precision(label, score),
        card_precision=card_precision(label, score, customer=customer, day=day, k=k),
    )


def _checked(
    label: npt.ArrayLike, score: npt.ArrayLike
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Return labels as flags and scores as float64; raise InputError for bad ones."""
    positive = np.asarray(label) == 1
    value = np.asarray(score, dtype=np.float64)
    if positive.shape != value.shape or positive.ndim != 1:
        raise InputError(
            "scores", f"shape {value.shape} does not match labels {positive.shape}"
        )
    if not np.isfinite(value).all():
        raise InputError("scores", f"{(~np.isfinite(value)).sum()} are not finite")
    if not positive.any() or positive.all():
        raise InputError("labels", "need both classes, 0 and 1; found one")
    return positive, value
