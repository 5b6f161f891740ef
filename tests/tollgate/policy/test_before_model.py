"""Rules that decide before the model: refused ones, and past rows without a score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from tollgate.errors import PolicyError
from tollgate.policy import Policy, load_policy
from tollgate.redecide import compare_policies, read_rows
from tollgate.schema import Decision, Degraded

RULE = {"name": "first", "owner": "me", "code": "FIRST", "before_model": "decline"}
LATER = {"name": "later", "owner": "me", "code": "LATER", "at_least": "review"}


def load(folder: Path, *rules: dict[str, object], **keys: object) -> Policy:
    """Compile a policy with these rules."""
    codes = ["MODEL_UNAVAILABLE", "SCORE_REVIEW", "SCORE_DECLINE"]
    codes += [str(one["code"]) for one in rules]
    doc = {
        "version": 1,
        "product": "toy",
        "labels": ["fine", "fraud"],
        "score": "fraud",
        "thresholds": {"review": 0.5, "decline": 0.9},
        "fallback": {"model_output": "review"},
        "rules": list(rules),
        "reasons": dict.fromkeys(codes, "a text"),
        **keys,
    }
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump(doc, sort_keys=False))
    return load_policy(path, feature_names=["f"])


SEGMENT = {"name": "blind", "thresholds": {"review": 0.1, "decline": 0.9}}
ASKS_MODEL = {"segments": [SEGMENT | {"when": {"MODEL_OUTPUT": True}}]}


@pytest.mark.parametrize(
    ("rule", "where", "problem"),
    [
        ({"when": {"score": {"ge": 0.9}}}, "when.score", "not known before the model"),
        ({"when": {"fraud": {"ge": 0.9}}}, "when.fraud", "not known before the model"),
        (
            {"when": {"f": {"ge": 1}, "MODEL_OUTPUT": False}},
            "when.MODEL_OUTPUT",
            "is not known before the model",
        ),
        ({"when": {"f": {"ge": 1}}, "stop": True}, "first.stop", "has no effect"),
        (
            {"when": {"f": {"ge": 1}}, "at_least": "review"},
            "rules.first",
            "needs exactly one of at_least, at_most, before_model",
        ),
        (
            {"when": {"f": {"ge": 1}}, "segments": ["other"]},
            "first.segments",
            "are not known before the model: blind needs MODEL_OUTPUT",
        ),
    ],
)
def test_a_rule_that_needs_the_model_is_refused(
    tmp_path: Path, rule: dict[str, object], where: str, problem: str
) -> None:
    """The message names the line, the rule and the key."""
    keys = ASKS_MODEL if "segments" in rule else {}
    with pytest.raises(PolicyError, match=problem) as caught:
        load(tmp_path, RULE | rule, **keys)
    assert caught.value.where.startswith("line ")
    assert caught.value.where.endswith(where)


def test_a_rule_after_one_that_needs_the_model_is_refused(tmp_path: Path) -> None:
    """The file has the order in which rules apply."""
    early = RULE | {"when": {"f": {"ge": 5}}}
    later = LATER | {"when": {"f": {"ge": 1}}}
    assert load(tmp_path, early, later).before_model == 1
    with pytest.raises(PolicyError, match="must stand before later, which has none"):
        load(tmp_path, later, early)


def test_a_later_rule_that_no_row_reaches_is_refused(tmp_path: Path) -> None:
    """No later rule applies to a row that is decided before the model."""
    early = RULE | {"when": {"f": {"ge": 1}}}
    with pytest.raises(PolicyError, match="is never reached: stopped by first"):
        load(tmp_path, early, LATER | {"when": {"f": {"ge": 2}}})


@pytest.mark.parametrize(
    ("meaning", "level", "refused"),
    [
        ("deny", "approve", True),
        ("deny", "review", False),
        ("deny", "decline", False),
        ("allow", "approve", False),
        ("allow", "review", True),
        ("allow", "decline", True),
    ],
)
def test_a_rule_may_not_contradict_its_list(
    tmp_path: Path, meaning: str, level: str, refused: bool
) -> None:
    """An id to deny is not approved, one to allow is neither reviewed nor declined."""
    rule = RULE | {"when": {"ids": True}, "before_model": level}
    lists = [{"name": "ids", "of": "customer_id", "meaning": meaning}]
    if not refused:
        assert (
            load(tmp_path, rule, lists=lists).rules[0].at_most
            == Decision[level.upper()]
        )
        return
    with pytest.raises(PolicyError, match=f"before_model: {level} turns it around"):
        load(tmp_path, rule, lists=lists)


def test_past_rows_without_a_score_are_left_out_where_one_is_needed(
    tmp_path: Path,
) -> None:
    """A failed model is another cause of a missing score: its rows stay."""
    early = RULE | {"when": {"f": {"ge": 5}}}
    narrower = RULE | {"when": {"f": {"ge": 7}}}
    new, old = load(tmp_path, narrower), load(tmp_path, early)
    failed = int(Degraded.MODEL_OUTPUT)
    table = pl.DataFrame(
        {
            "feature_f": [1.0, 6.0, 7.0, 6.0],
            "probability_0": [0.05, np.nan, np.nan, np.nan],
            "probability_1": [0.95, np.nan, np.nan, np.nan],
            "amount_cents": [100, 200, 300, 400],
            "degraded": [0, 0, 0, failed],
            "decision": ["decline", "decline", "decline", "decline"],
        }
    )
    path = tmp_path / "rows.parquet"
    table.write_parquet(path)
    past = read_rows(path, policies=[new, old], feature_names=["f"], fields=())
    assert past.left_out == 1
    assert past.facts.cents.tolist() == [100, 300, 400]
    found = compare_policies(past, new=new, old=old)
    # The row whose model failed: declined by the old rule, now the fallback's review.
    assert found.matrix == ((0, 0, 0), (0, 0, 0), (0, 1, 2))
    (rule,) = found.rules
    assert (rule.before, rule.after) == (2, 1)
    unchanged = read_rows(path, policies=[old], feature_names=["f"], fields=())
    assert unchanged.left_out == 0
