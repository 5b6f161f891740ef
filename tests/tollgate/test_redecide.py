"""Decisions of a changed policy, counted by hand on a few rows."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.policy import Policy, load_policy
from tollgate.redecide import PolicyComparison, compare_policies, draw, read_rows
from tollgate.schema import Decision, DeclaredField, Degraded, hash_words

FEATURES = ("amount", "risk", "unused")
FIELDS = (DeclaredField("channel", "category"), DeclaredField("distance", "number", 1))
OLD = """
version: 1
product: toy
labels: [legitimate, fraud]
score: fraud
thresholds: {review: 0.5, decline: 0.8}
fallback: {model_output: review}
rules:
  - {name: risky, owner: ops, when: {risk: {ge: 0.5}}, at_least: review, code: RISKY}
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, RISKY: k}
"""
NEW = """
version: 1
product: toy
labels: [legitimate, fraud]
score: fraud
thresholds: {review: 0.5, decline: 0.7}
fallback: {model_output: decline}
segments:
  - {name: large, when: {amount: {ge: 100}}, thresholds: {review: 0.2, decline: 0.7}}
lists:
  - {name: stolen, of: customer_id, meaning: deny}
rules:
  - {name: stolen, owner: ops, when: {stolen: true}, at_least: decline, code: STOLEN}
  - {name: risky, owner: ops, when: {risk: {ge: 0.9}}, at_least: review, code: RISKY}
  - {name: far, owner: care, when: {distance: {gt: 10}, channel: web}, at_least: review,
     code: FAR, from: 2026-01-02}
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, RISKY: k, STOLEN: s,
  FAR: f}
"""
DAY = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
NIGHT_BEFORE = DAY - datetime.timedelta(microseconds=1)

# score, cents, risk, distance, channel, when, stolen; decided before → after
ROWS: list[tuple[Any, ...]] = [
    (0.1, 1_000, 0.0, 1.0, "web", DAY, False, "approve", "approve"),
    (0.75, 2_000, 0.0, 1.0, "web", DAY, False, "review", "decline"),
    (0.3, 10_000, 0.0, 1.0, "web", DAY, False, "approve", "review"),
    (0.1, 500, 0.6, 1.0, "web", DAY, False, "review", "approve"),
    (0.1, 700, 0.0, 10.1, "web", DAY, False, "approve", "review"),
    (0.1, 700, 0.0, 10.1, "web", NIGHT_BEFORE, False, "approve", "approve"),
    (0.1, 700, 0.0, 10.1, "app", DAY, False, "approve", "approve"),
    (0.1, 700, 0.0, None, "web", DAY, False, "approve", "approve"),
    (0.1, 30_000, 0.0, 1.0, "web", DAY, True, "approve", "decline"),
    (float("nan"), 40, 0.0, 1.0, "web", DAY, False, "review", "decline"),
]


def load(text: str, folder: Path) -> Policy:
    """Compile a policy."""
    path = folder / "policy.yaml"
    path.write_text(text)
    return load_policy(path, feature_names=FEATURES, fields=FIELDS)


@pytest.fixture
def new(tmp_path: Path) -> Policy:
    """Return the changed policy."""
    return load(NEW, tmp_path)


@pytest.fixture
def old(tmp_path: Path) -> Policy:
    """Return the previous policy."""
    return load(OLD, tmp_path)


def own_file(folder: Path) -> Path:
    """Write a Parquet file with columns as they are sent."""
    names = ("score", "amount", "risk", "distance", "channel", "event_time")
    columns = dict(
        zip(names, zip(*(row[:6] for row in ROWS), strict=True), strict=True)
    )
    columns["amount"] = tuple(cents / 100 for cents in columns["amount"])
    frame = pl.DataFrame({name: list(values) for name, values in columns.items()})
    frame = frame.with_columns(
        list_stolen=pl.Series([row[6] for row in ROWS]),
        decision=pl.Series([row[7] for row in ROWS]),
    )
    path = folder / "own.parquet"
    frame.write_parquet(path)
    return path


def sealed_folder(folder: Path) -> Path:
    """Write segments as the journal seals them, next to a table of another kind."""
    score = [row[0] for row in ROWS]
    words = hash_words([row[4].encode() for row in ROWS])
    whole = [None if row[3] is None else round(row[3] * 10) for row in ROWS]
    frame = pl.DataFrame(
        {
            "sequence": range(len(ROWS)),
            "event_time": pl.Series([row[5] for row in ROWS]).cast(
                pl.Datetime("us", "UTC")
            ),
            "amount_cents": [row[1] for row in ROWS],
            "list_hits": pl.Series([int(row[6]) for row in ROWS], dtype=pl.UInt32),
            "field_distance": pl.Series(whole, dtype=pl.Int64),
            "field_channel": words,
            "feature_amount": pl.Series([0.0] * len(ROWS), dtype=pl.Float32),
            "feature_risk": pl.Series([row[2] for row in ROWS], dtype=pl.Float32),
            "probability_0": pl.Series([1 - one for one in score], dtype=pl.Float32),
            "probability_1": pl.Series(score, dtype=pl.Float32),
            # MODEL_OUTPUT was set by the policy of then; the next one decides again.
            "degraded": pl.Series(
                [int(Degraded.MODEL_OUTPUT) if one != one else 0 for one in score],
                dtype=pl.UInt32,
            ),
            "decision": [row[7] for row in ROWS],
        }
    )
    without_consent = frame.head(1).with_columns(
        **{
            name: pl.lit(None, frame[name].dtype)
            for name in frame.columns
            if name not in ("sequence", "degraded", "decision")
        }
    )
    sealed = folder / "journal"
    (sealed / "more").mkdir(parents=True)
    frame.head(4).write_parquet(sealed / "1.parquet")
    pl.concat([frame.tail(6), without_consent]).write_parquet(
        sealed / "more" / "2.parquet"
    )
    pl.DataFrame({"writer": ["w"], "flag": ["f"]}).write_parquet(
        sealed / "flags.parquet"
    )
    return sealed


def compare(path: Path, *, new: Policy, old: Policy | None = None) -> PolicyComparison:
    """Read rows and decide them again."""
    past = read_rows(
        path,
        policies=[new] if old is None else [new, old],
        feature_names=FEATURES,
        fields=FIELDS,
    )
    return compare_policies(past, new=new, old=old)


@pytest.mark.parametrize("source", [own_file, sealed_folder])
@pytest.mark.parametrize("against", [True, False])
def test_every_row_gets_the_decision_computed_by_hand(
    tmp_path: Path, new: Policy, old: Policy, source: Any, against: bool
) -> None:
    """From a file and from the journal; against a policy and recorded decisions."""
    found = compare(source(tmp_path), new=new, old=old if against else None)
    levels = ("approve", "review", "decline")
    assert found.matrix == tuple(
        tuple(sum(row[7:] == (a, b) for row in ROWS) for b in levels) for a in levels
    )
    assert found.cents == tuple(
        tuple(sum(row[1] for row in ROWS if row[7:] == (a, b)) for b in levels)
        for a in levels
    )
    assert found.rows == 10
    assert found.left_out == (1 if source is sealed_folder else 0)
    assert found.changed == 6
    assert found.more(Decision.DECLINE) == 3
    assert found.more_cents(Decision.DECLINE) == 32_040
    assert found.more(Decision.APPROVE) == -2


def test_segments_and_rules_are_counted(
    tmp_path: Path, new: Policy, old: Policy
) -> None:
    """By the new policy's segments and rules; a rule of the same name by both."""
    found = compare(own_file(tmp_path), new=new, old=old)
    other, large = found.segments
    assert (other.name, other.rows, other.before, other.after) == (
        *("other", 8),
        *((5, 3, 0), (5, 1, 2)),
    )
    assert (large.name, large.rows, large.before, large.after) == (
        *("large", 2),
        *((2, 0, 0), (0, 1, 1)),
    )
    assert large.cents_after == (0, 10_000, 30_000)
    stolen, risky, far = found.rules
    assert (stolen.before, stolen.after, stolen.otherwise, stolen.cents) == (
        *(None, 1, 1),
        30_000,
    )
    assert (risky.before, risky.after) == (1, 0)
    assert (far.before, far.after, far.owner) == (None, 1, "care")


def test_picture_is_drawn(tmp_path: Path, new: Policy, old: Policy) -> None:
    """A PNG; also without any rows."""
    found = compare(own_file(tmp_path), new=new, old=old)
    draw(found, tmp_path / "some.png")
    nothing = pl.read_parquet(own_file(tmp_path)).head(0)
    nothing.write_parquet(tmp_path / "nothing.parquet")
    none = compare(tmp_path / "nothing.parquet", new=new, old=old)
    assert none.rows == none.changed == 0
    draw(none, tmp_path / "none.png")
    for name in ("some.png", "none.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("score", "column probability_0: is missing"),
        ("amount", "column amount_cents or amount: is missing"),
        ("risk", "column feature_risk: is missing"),
        ("distance", "column distance: is missing"),
        ("event_time", "column event_time: is missing"),
        ("decision", "against: name the policy to compare with"),
    ],
)
def test_error_names_the_missing_column(
    tmp_path: Path, new: Policy, column: str, words: str
) -> None:
    """Columns that the policy does not name may be missing."""
    path = own_file(tmp_path)
    pl.read_parquet(path).drop(column).write_parquet(path)
    with pytest.raises(InputError) as caught:
        compare(path, new=new)
    assert words in str(caught.value)


def test_unused_columns_may_be_missing(tmp_path: Path, old: Policy) -> None:
    """The old policy needs score, amount and one feature, and nothing else."""
    path = own_file(tmp_path)
    pl.read_parquet(path).select("score", "amount", "risk").write_parquet(path)
    assert compare(path, new=old, old=old).changed == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"decision": ["maybe"]},
            "column decision: 'maybe' is none of approve, review",
        ),
        ({"risk": ["high"]}, "column risk: is String, which does not fit"),
    ],
)
def test_error_names_the_column_of_the_wrong_type(
    tmp_path: Path, old: Policy, values: dict[str, list[Any]], words: str
) -> None:
    """By file and column."""
    path = tmp_path / "wrong.parquet"
    row = {"score": [0.5], "amount": [1.0], "risk": [0.0], "decision": ["review"]}
    pl.DataFrame(row | values).write_parquet(path)
    with pytest.raises(InputError) as caught:
        compare(path, new=old)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_folder_without_decisions_is_refused(tmp_path: Path, old: Policy) -> None:
    """And so is a file that is no Parquet file."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no Parquet file with decisions"):
        compare(tmp_path / "empty", new=old)
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(InputError, match=r"text\.parquet: cannot be read"):
        compare(tmp_path / "text.parquet", new=old)
