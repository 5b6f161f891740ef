"""The rule that decides when no server does."""

import math

import pytest

from tollgate_client import Band, Fallback, InputError, fallback_from

RULE = Fallback(
    bands=(Band(below=50, decision="approve"), Band(below=500, decision="review")),
    otherwise="decline",
)


@pytest.mark.parametrize(
    ("amount", "decision"),
    [
        (0, "approve"),
        (49.99, "approve"),
        (50, "review"),
        (499.99, "review"),
        (500, "decline"),
        (math.nan, "decline"),
    ],
)
def test_the_first_band_that_an_amount_lies_below_decides(amount, decision):
    """Its edge belongs to the next one; no amount is like none of them."""
    assert RULE.decide(amount) == decision


def test_a_rule_can_have_other_outcomes():
    """Made in code or read from a document; a default word is then unknown."""
    document = {
        "bands": [{"below": 50, "decision": "normal"}],
        "otherwise": "watch",
        "outcomes": ["normal", "watch", "alarm"],
    }
    rule = Fallback(
        bands=(Band(below=50, decision="normal"),),
        otherwise="watch",
        outcomes=("normal", "watch", "alarm"),
    )
    assert fallback_from(document) == rule
    assert [rule.decide(amount) for amount in (49, 50)] == ["normal", "watch"]


def test_a_rule_read_from_a_document_is_the_rule_itself():
    """As a part of a YAML file would give it."""
    document = {
        "bands": [
            {"below": 50, "decision": "approve"},
            {"below": 500.0, "decision": "review"},
        ],
        "otherwise": "decline",
    }
    assert fallback_from(document) == RULE


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"otherwise": "allow"}, "fallback: otherwise: 'allow' is none of approve"),
        ({}, "fallback: otherwise: is missing"),
        (
            {"otherwise": "review", "outcomes": ["normal", "watch", "alarm"]},
            "fallback: otherwise: 'review' is none of normal, watch, alarm",
        ),
        (
            {"otherwise": "a", "outcomes": ["a", "b", "b"]},
            r"fallback: outcomes: .* are not three different words",
        ),
        ({"otherwise": "a", "outcomes": "abc"}, "outcomes: 'abc' is not a list"),
        ({"otherwise": "review", "limit": 3}, "fallback: limit: is unknown; known are"),
        (
            {"otherwise": "review", "bands": [{"below": "5", "decision": "approve"}]},
            r"fallback: bands\[0\].below: '5' is not a number",
        ),
        (
            {"otherwise": "review", "bands": [{"below": 5, "decision": "yes"}]},
            r"bands\[0\].decision: 'yes' is none of",
        ),
        (
            {"otherwise": "review", "bands": [{"below": 0, "decision": "approve"}]},
            r"bands\[0\].below: 0.0 is not above 0",
        ),
        (
            {
                "otherwise": "review",
                "bands": [
                    {"below": 9, "decision": "approve"},
                    {"below": 9, "decision": "review"},
                ],
            },
            r"bands\[1\].below: 9.0 is not above 9; bands ascend",
        ),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_by_name(document, words):
    """It is found where the client is made, not when it is needed."""
    with pytest.raises(InputError, match=words):
        fallback_from(document)


@pytest.mark.parametrize("below", [math.nan, math.inf, -1])
def test_a_band_has_an_end(below):
    """NaN and infinity are none."""
    with pytest.raises(InputError, match=r"bands\[0\].below"):
        Fallback(bands=(Band(below=below, decision="approve"),), otherwise="review")
