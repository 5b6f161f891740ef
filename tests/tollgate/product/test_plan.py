"""What a table becomes as a whole: nasty ones too, or a sentence that says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.product import usable
from tollgate.product.asked import ProductChoices
from tollgate.product.plan import Plan, make_plan

ROWS = 400
CHANCE = np.random.default_rng(11)
X = CHANCE.normal(size=ROWS).round(3)
Y = (X + CHANCE.normal(size=ROWS) > 0.4).astype(int)
WORD = CHANCE.choice(["red", "green", "blue"], ROWS)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Where a test's table is."""
    return tmp_path / "table.parquet"


def planned(table: Path, columns: dict[str, Any], **roles: Any) -> Plan:
    """Write a table and look at it."""
    pl.DataFrame(columns, strict=False).write_parquet(table)
    return make_plan(
        ProductChoices(**{"product": "p", "table": table, "label": "y", **roles})
    )


def left_out(plan: Plan) -> dict[str, str]:
    """Say why columns are left out."""
    return {one.source: one.reason for one in plan.excluded}


def test_columns_get_their_parts(table: Path) -> None:
    """Fields, what is left out, and what a person should know."""
    plan = planned(
        table,
        {"x": X, "x again": X, "word": WORD, "nr": range(ROWS), "a": Y, "y": Y},
        drop=("word",),
    )
    assert [one.name for one in plan.fields] == ["x"]
    assert set(left_out(plan)) == {"x again", "word", "nr", "a"}
    assert plan.aliases == {"label": "y"}
    assert (plan.outcome, plan.other) == ("y_1", "not_y_1")


def test_rows_that_lack_what_each_must_have_are_left_out(table: Path) -> None:
    """An outcome, an id, a time, an amount; the number of them is told."""
    y = [None if at == 1 else int(one) for at, one in enumerate(Y)]
    columns = {
        "x": X,
        "y": y,
        "who": [None if at == 2 else at % 9 for at in range(ROWS)],
        "when": ["soon" if at == 3 else "2024-03-04" for at in range(ROWS)],
        "paid": ["free" if at == 4 else "1.50" for at in range(ROWS)],
    }
    plan = planned(table, columns, entities=("who",), time="when", amount="paid")
    assert len(plan.frame) == ROWS - 4
    assert plan.notes[0].startswith("4 of 400 rows lack an outcome")
    assert (plan.entities[0].name, plan.entities[0].key) == ("who", "who")


def test_names_that_no_input_can_have_are_changed(table: Path) -> None:
    """Each of them is an alias; what only Tollgate may be called is left out."""
    columns = {"größe in cm": X, "amount": WORD, "label": X + 1, "y": Y}
    plan = planned(table, columns)
    assert [one.name for one in plan.fields] == ["gr_e_in_cm", "amount_field"]
    assert plan.aliases["amount_field"] == "amount"
    assert "rename it" in left_out(plan)["label"]


def test_of_very_many_columns_the_telling_ones_are_kept(table: Path) -> None:
    """2,000 columns of chance and two that know something."""
    columns = {f"c{at}": CHANCE.normal(size=ROWS).round(2) for at in range(1_998)}
    columns |= {"good": X, "y": Y}
    columns["word"] = np.where((Y == 1) | (WORD == "red"), WORD, "grey")
    plan = planned(table, columns, most_fields=20)
    names = [one.name for one in plan.fields]
    assert len(names) == 20
    assert {"good", "word"} <= set(names)
    assert len(plan.excluded) == 1_980


def test_the_rows_that_judge_have_no_say_in_the_choice(table: Path) -> None:
    """A column that knows only the last fifth in time is worth nothing."""
    late = np.arange(ROWS) >= ROWS * 0.8
    honest = X + CHANCE.normal(size=ROWS)
    columns = {"late": np.where(late, Y * 9.0, X[::-1]), "early": honest, "y": Y}
    columns["when"] = [f"2024-{1 + at // 28:02}-{1 + at % 28:02}" for at in range(336)]
    columns["when"] += [f"2025-{1 + at // 28:02}-{1 + at % 28:02}" for at in range(64)]
    plan = planned(table, columns, time="when", most_fields=1)
    assert [one.name for one in plan.fields] == ["early"]


def test_a_clock_is_left_out(table: Path) -> None:
    """What only rises with time says nothing of rows to come."""
    when = 1_700_000_000 + 3_600 * CHANCE.permutation(ROWS)
    plan = planned(
        table, {"x": X, "step": when * 2 - 10**9, "when": when, "y": Y}, time="when"
    )
    assert left_out(plan)["step"] == "only rises with time: a clock"
    assert plan.at_night


def test_what_gives_the_outcome_away_can_be_kept(table: Path) -> None:
    """By name; and a column that is nearly as good is pointed at."""
    near = Y + CHANCE.normal(size=ROWS) * 0.3
    columns = {"x": X, "same": Y, "near": near.round(2), "y": Y}
    assert "same" in left_out(planned(table, columns))
    plan = planned(table, columns, keep=("same",))
    assert [one.name for one in plan.fields] == ["x", "same", "near"]
    assert len(plan.notes) == 1
    assert plan.notes[0].startswith("'near' alone has an AUC of 0.9")


def test_of_very_many_rows_some_are_taken(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest, where they have a time; else drawn by chance, the same each time."""
    monkeypatch.setattr(usable, "MOST_ROWS", 300)
    when = 1_700_000_000 + 3_600 * CHANCE.permutation(ROWS)
    columns = {"x": X, "when": when, "y": Y}
    newest = planned(table, columns, time="when")
    assert newest.frame["when"].min() == np.sort(when)[-300]
    drawn = planned(table, columns)
    assert drawn.frame.equals(planned(table, columns).frame)
    assert drawn.notes == ("300 of 400 rows are used, drawn by chance",)


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ({"label": "z"}, "label: the table has no column 'z'; it has x, word, y, n"),
        ({"time": "word"}, "time: 'word' holds no times, such as "),
        ({"id": "word"}, "id: 'word' has the same id in two rows"),
        ({"drop": ("z",)}, "drop: the table has no column 'z'"),
        ({"drop": ("x", "word")}, "no column is left that a model could learn from"),
        ({"label": "x"}, "x: has "),
        ({"positive": "3"}, "y: no row is '3'; there are '0', '1'"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(
    table: Path, roles: dict[str, Any], words: str
) -> None:
    """By option or column."""
    with pytest.raises(InputError) as caught:
        planned(table, {"x": X, "word": WORD, "y": Y, "nr": range(ROWS)}, **roles)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_that_are_called_as_ours_are_taken_for_them(table: Path) -> None:
    """If they can be: an id that is there twice is none, and left out."""
    columns = {"x": X, "y": Y, "transaction_id": range(ROWS)}
    columns["event_time"] = [1_700_000_000 + at * 3_600 for at in range(ROWS)]
    plan = planned(table, columns)
    assert (plan.choices.id, plan.choices.time) == ("transaction_id", "event_time")
    assert len(plan.notes) == 2
    columns |= {"transaction_id": WORD, "event_time": WORD}
    plan = planned(table, columns)
    assert (plan.choices.id, plan.choices.time, plan.notes) == (None, None, ())
    assert set(left_out(plan)) == {"transaction_id", "event_time"}


@pytest.mark.parametrize("option", ["sensitive", "entities", "time"])
def test_lists_of_things_are_no_roles(table: Path, option: str) -> None:
    """A column of lists can be left out and nothing else."""
    columns = {"x": X, "y": Y, "many": [[1, 2]] * ROWS}
    role = "many" if option == "time" else ("many",)
    with pytest.raises(InputError, match="holds List"):
        planned(table, columns, **{option: role})
    assert len(planned(table, columns, drop=("many",)).fields) == 1
