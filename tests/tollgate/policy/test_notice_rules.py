"""A notice has at most four specific reasons, and none is a protected attribute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tollgate.errors import PolicyError
from tollgate.policy import Policy, load_policy
from tollgate.policy.reason_sentences import select_reasons

NAMES = ("income", "debts", "burden", "term", "late", "home")
POLICY = """
version: 1
product: loans
labels: [repaid, default]
score: default
thresholds: {review: 0.3, decline: 0.8}
fallback: {model_output: review}
rules: []
contributions: {income: INCOME, debts: DEBTS, burden: DEBTS, term: TERM, late: LATE,
  home: HOME}
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, INCOME: low income,
  DEBTS: high debts, TERM: long term, LATE: paid late, HOME: housing}
notice: {most: 4, never: [SCORE_DECLINE, SCORE_REVIEW]}
sensitive: [sex, age]
"""


def compiled(
    folder: Path, text: str, names: tuple[str, ...] = NAMES, **more: object
) -> Policy:
    """Compile a policy."""
    (folder / "policy.yaml").write_text(text)
    return load_policy(folder / "policy.yaml", feature_names=names, **more)  # type: ignore[arg-type]


def reported(policy: Policy, codes: list[str], amounts: list[float]) -> list[str]:
    """Return the reported codes."""
    found = select_reasons(
        policy, codes, contributions=np.array(amounts), feature_names=NAMES
    )
    return [one.code for one in found]


@pytest.mark.parametrize(
    ("codes", "amounts", "wanted"),
    [
        # The largest first, four at most; that a score was missed is no reason.
        (["SCORE_DECLINE"], [1, 0.3, 0.3, 0.4, 0.2, 0.1], "INCOME DEBTS TERM LATE"),
        # What lowered the score is none.
        (["SCORE_REVIEW"], [-1, 0, 0.2, -0.1, 0.3, 0], "LATE DEBTS"),
        # Two features of one code count together, whatever each of them says.
        ([], [0.5, 0.9, -0.6, 0.1, 0, 0], "INCOME DEBTS TERM"),
        ([], [0.1, 0.9, -1.0, 0, 0, 0], "INCOME"),
        # A rule that held comes first, and is reported once.
        (["SCORE_DECLINE", "LATE"], [0.5, 0, 0, 0, 0.9, 0.1], "LATE INCOME HOME"),
        ([], [0, 0, 0, 0, 0, 0], ""),
    ],
)
def test_principal_reasons(
    tmp_path: Path, codes: list[str], amounts: list[float], wanted: str
) -> None:
    """By what each code added to the score."""
    assert reported(compiled(tmp_path, POLICY), codes, amounts) == wanted.split()


def test_a_policy_may_report_fewer(tmp_path: Path) -> None:
    """`most` is the bound; the sum and the largest feature of a code stay."""
    policy = compiled(tmp_path, POLICY.replace("most: 4", "most: 2"))
    found = select_reasons(
        policy,
        ["SCORE_DECLINE"],
        contributions=np.array([0.1, 0.2, 0.5, 0.3, 0.0, 0.0]),
        feature_names=NAMES,
    )
    assert [(one.code, one.feature) for one in found] == [
        ("DEBTS", "burden"),
        ("TERM", "term"),
    ]
    assert found[0].contribution == pytest.approx(0.7)
    assert found[0].text == "high debts"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("most: 4", "most: 5", "line 13: notice.most: 5 is not within 1 … 4"),
        ("most: 4", "most: 0", "notice.most: 0 is not within 1 … 4"),
        ("never: [SCORE", "never: [NONE, SCORE", "notice.never: NONE is no code"),
        (
            "never: [SCORE",
            "never: [LATE, SCORE",
            "notice.never: LATE is reported for a feature, which may be a principal",
        ),
        (
            "term: TERM, late",
            "late",
            "contributions: term has no code: it could be a reason that is not report",
        ),
        ("[sex, age]", "[sex, Income]", "sensitive.1: Income is an input of the prod"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    """With file, line and key."""
    text = POLICY.replace(old, new)
    if "term: TERM" not in text:
        text = text.replace("TERM: long term, ", "")
    with pytest.raises(PolicyError) as caught:
        compiled(tmp_path, text)
    assert words in str(caught.value)


def test_an_id_may_not_be_sensitive_either(tmp_path: Path) -> None:
    """Features, fields and ids are all inputs."""
    with pytest.raises(PolicyError, match="sex is an input of the product"):
        compiled(tmp_path, POLICY, id_names=("transaction_id", "sex"))


def test_without_a_notice_all_reasons_are_reported(tmp_path: Path) -> None:
    """Codes of the answer first, each feature by itself."""
    text = POLICY.replace("notice: {most: 4, never: [SCORE_DECLINE, SCORE_REVIEW]}", "")
    policy = compiled(tmp_path, text)
    assert policy.notice is None
    assert reported(policy, ["SCORE_DECLINE"], [0.1, 0.9, -1.0, 0, 0, 0]) == [
        "SCORE_DECLINE",
        "DEBTS",
        "INCOME",
    ]
