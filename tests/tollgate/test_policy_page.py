"""docs/policy.md: its example loads, decides what it says, and refuses what it says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.products.press_product import NAME, POLICY, readings, write_press
from tollgate import Engine
from tollgate.errors import PolicyError
from tollgate.policy import Policy, RowFacts, decide, load_policy
from tollgate.policy.policy_document import (
    RawFallback,
    RawHysteresis,
    RawList,
    RawMeaning,
    RawNotice,
    RawPolicy,
    RawRule,
    RawScore,
    RawSegment,
)
from tollgate.schema import (
    MISSING,
    Decision,
    DeclaredField,
    Degraded,
    hash_words,
)

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
FIELDS = (DeclaredField("channel", "category"), DeclaredField("distance", "number", 1))
FEATURES = ("amount", "pace", "risk")


def blocks(kind: str) -> list[str]:
    """Take the page's blocks of a kind."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def load(text: str, folder: Path) -> Policy:
    """Compile a text as policy.yaml."""
    path = folder / "policy.yaml"
    path.write_text(text)
    return load_policy(
        path,
        feature_names=FEATURES,
        fields=FIELDS,
        id_names=("transaction_id", "customer_id"),
    )


def rows() -> list[dict[str, str]]:
    """Take the table of decisions: a dict by column."""
    (table,) = blocks("decisions")
    head, *lines = (line.replace("→", "").split() for line in table.splitlines())
    return [
        {
            name: "" if cell == "." else cell
            for name, cell in zip(head, line, strict=True)
        }
        for line in lines
    ]


@pytest.fixture
def example(tmp_path: Path) -> Policy:
    """The policy of the page."""
    (text,) = blocks("yaml")
    return load(text, tmp_path)


@pytest.mark.parametrize("row", rows(), ids=lambda row: " ".join(row.values()))
def test_the_example_decides_what_the_page_says(
    example: Policy, row: dict[str, str]
) -> None:
    """Decision and codes of each line of the table."""
    stolen, abuse = float(row["stolen"]), float(row["abuse"])
    bits = [Degraded[name] for name in row["bits"].split("|") if name]
    lists = [one.name for one in example.lists]
    hits = [1 << lists.index(name) for name in row["lists"].split("|") if name]
    distance = round(float(row["distance"]) * 10) if row["distance"] else MISSING
    amount = float(row["amount"])
    facts = RowFacts(
        probabilities=np.array([[1 - stolen - abuse, stolen, abuse]], np.float32),
        features=np.array([[amount, float(row["pace"]), 0.0]], np.float32),
        cents=np.array([round(amount * 100)]),
        degraded=np.array([sum(bits)], np.uint32),
        event_time_us=np.array([row["day"]], "M8[us]").astype(np.int64),
        list_hits=np.array([sum(hits)], np.uint32),
        fields={
            "channel": hash_words([row["channel"].encode()]),
            "distance": np.array([distance]),
        },
    )
    decided = decide(facts, policy=example)
    assert Decision(decided.decision[0]).name.lower() == row["decision"]
    assert decided.reason_codes[0].decode() == row["codes"]


def test_hysteresis_answers_what_the_page_says(tmp_path: Path) -> None:
    """Readings of one machine, ten seconds apart, with the section of the page."""
    start, stop = POLICY.index("hysteresis:"), POLICY.index("reasons:")
    (section,), (text,) = blocks("hysteresis"), blocks("answers")
    write_press(
        tmp_path / "press", policy_text=POLICY[:start] + section + POLICY[stop:]
    )
    lines = [line.replace("→", "").split() for line in text.splitlines()[1:]]
    heat = {"approve": 20.0, "review": 85.0}
    rows = [
        (f"r{at}", "m", 1_700_000_000_000_000 + at * 10_000_000, heat[line[0]])
        for at, line in enumerate(lines)
    ]
    with Engine.open(tmp_path / "press", product=NAME) as engine:
        found = engine.decide(readings(*rows))
    codes = [
        text.removeprefix("TEMPERATURE_WARM").removeprefix("|") or "."
        for text in found["reason_codes"]
    ]
    answers = zip(found["decision"], codes, strict=True)
    assert [list(one) for one in answers] == [line[1:] for line in lines]


@pytest.mark.parametrize("block", blocks("refused"))
def test_the_page_says_what_is_refused_in_which_words(
    tmp_path: Path, block: str
) -> None:
    """The first line, replaced by the second, gives the third."""
    old, new, words = block.splitlines()
    (text,) = blocks("yaml")
    assert old in text
    with pytest.raises(PolicyError) as caught:
        load(text.replace(old, new, 1), tmp_path)
    assert str(caught.value) == f"{tmp_path}/{words}"


@pytest.mark.parametrize(
    "part",
    [
        *(RawPolicy, RawRule, RawSegment, RawList),
        *(RawScore, RawFallback, RawMeaning, RawNotice),
        RawHysteresis,
    ],
)
def test_the_page_has_every_key(part: type[msgspec.Struct]) -> None:
    """Each key that a file may have is named on the page."""
    for field in msgspec.structs.fields(part):
        assert f"`{field.encode_name}" in PAGE or f"{field.encode_name}:" in PAGE
