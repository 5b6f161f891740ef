"""
The card of the shipped fraud model says how good it is on purchases it never saw.

Nothing of ours computes the expected figures: the rows, features and labels are the
Fraud Detection Handbook's, the scores onnxruntime's, the AUC scikit-learn's.
"""

import re
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import onnxruntime
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from tests.support.checkout import CHECKOUT

REPOSITORY = CHECKOUT / "model_repository"

MODEL = REPOSITORY / "fraud_model" / "1"
TRAINED_UNTIL = datetime(2018, 8, 1)
JUDGED_DAYS = [datetime(2018, 8, day) for day in range(8, 15)]


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.fixture(scope="module")
def card() -> str:
    return (MODEL / "card.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outside(shared_data: Path) -> pl.DataFrame:
    """The book's test week with the score of the shipped model."""
    every = pl.read_parquet(
        shared_data / "handbook" / "features_2018-07-25_2018-08-14.parquet"
    ).with_columns(day=pl.col("TX_DATETIME").dt.truncate("1d"))
    frauds = every.filter(pl.col("TX_FRAUD") == 1)
    parts = []
    for day in JUDGED_DAYS:
        # A fraud is known a week later; the card's owner is left out from then on.
        known = frauds.filter(pl.col("day") <= day - timedelta(days=8))
        today = every.filter(pl.col("day") == day)
        parts.append(today.join(known, on="CUSTOMER_ID", how="anti"))
    week = pl.concat(parts)
    names = [
        *("TX_AMOUNT", "TX_DURING_WEEKEND", "TX_DURING_NIGHT"),
        *(
            f"{name}_{days}DAY_WINDOW"
            for pair in (
                ("CUSTOMER_ID_NB_TX", "CUSTOMER_ID_AVG_AMOUNT"),
                ("TERMINAL_ID_NB_TX", "TERMINAL_ID_RISK"),
            )
            for days in (1, 7, 30)
            for name in pair
        ),
    ]
    session = onnxruntime.InferenceSession(MODEL / "model.onnx")
    rows = week.select(names).to_numpy().astype(np.float32)
    (probabilities,) = session.run(None, {session.get_inputs()[0].name: rows})
    return week.with_columns(score=pl.Series(probabilities[:, 1]))


def test_the_headline_is_of_rows_not_trained_on(card: str) -> None:
    """On its training rows the model has 1.0000, which says nothing."""
    head, _, rest = card.partition("## ")
    found = re.search(
        r"AUC: \*\*(\S+)\*\*.* ([\d,]+) labelled rows.*not trained on", head
    )
    assert found is not None
    trained = re.search(r"Its training rows: ([\d,]+)\.", rest)
    assert trained is not None
    assert number(found[2]) != number(trained[1])
    judged = re.search(r"of (\S+) to (\S+), (\d+) whole days after the last one", rest)
    assert judged is not None
    first, last = map(datetime.fromisoformat, judged.groups()[:2])
    assert first - timedelta(days=int(judged[3])) == TRAINED_UNTIL
    assert [first, last] == [JUDGED_DAYS[0], JUDGED_DAYS[-1]]


def test_every_segment_covers_all_rows_of_the_headline(card: str) -> None:
    """Rows and positives of the segments of one kind sum up to those of the whole."""
    rows = number(re.search(r"Judged on ([\d,]+) labelled rows", card)[1])  # type: ignore[index]
    positives = number(re.search(r"\| positive rows \| ([\d,]+) \|", card)[1])  # type: ignore[index]
    segments = card.partition("## Quality by segment")[2].partition("\n## ")[0]
    kinds = re.split(r"^By ", segments, flags=re.MULTILINE)[1:]
    assert len(kinds) >= 4
    for kind in kinds:
        sizes = re.findall(r"^\| `[^|]+` \| ([\d,]+) \| ([\d,]+) \|", kind, re.M)
        assert sum(number(one) for one, _ in sizes) == rows, kind
        assert sum(number(one) for _, one in sizes) == positives, kind


def test_the_figures_hold_on_purchases_made_by_others(
    card: str, outside: pl.DataFrame
) -> None:
    """The book's own purchases of that week give the same AUC but for chance."""
    assert outside.height == 58_264  # as published, with 385 frauds
    assert outside["TX_FRAUD"].sum() == 385
    judged = float(re.search(r"\| AUC \| (\S+) \|", card)[1])  # type: ignore[index]
    low, high = re.search(r"interval \(DeLong\) \| (\S+) to (\S+) \|", card).groups()  # type: ignore[union-attr]
    spread = float(high) - float(low)
    theirs = roc_auc_score(outside["TX_FRAUD"], outside["score"])
    # Two samples of 400 frauds each: their intervals touch.
    assert abs(theirs - judged) < spread, (theirs, judged)


def test_frauds_of_terminals_known_for_fraud_are_found_best(
    card: str, outside: pl.DataFrame
) -> None:
    """The card's segments say so, and the book's purchases do."""
    risky = pl.col("TERMINAL_ID_RISK_30DAY_WINDOW") > 0
    segments = card.partition("By `known frauds of the terminal")[2]
    known, unknown = (
        float(re.search(rf"^\| `{word}` \|(.*)\|$", segments, re.M)[1].split("|")[4])  # type: ignore[index]
        for word in ("some", "none")
    )
    assert known > unknown
    known, unknown = (
        roc_auc_score(rows["TX_FRAUD"], rows["score"])
        for rows in (outside.filter(risky), outside.filter(~risky))
    )
    assert known > unknown
