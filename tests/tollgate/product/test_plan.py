"""The plan of a product, also from difficult tables; unusable ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.product import table_reading
from tollgate.product.choices import ProductChoices
from tollgate.product.plan import Plan, make_plan

ROWS = 400
CHANCE = np.random.default_rng(11)
X = CHANCE.normal(size=ROWS).round(3)
Y = (X + CHANCE.normal(size=ROWS) > 0.4).astype(int)
WORD = CHANCE.choice(["red", "green", "blue"], ROWS)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return the path of a table."""
    return tmp_path / "table.parquet"


def planned(table: Path, columns: dict[str, Any], **roles: Any) -> Plan:
    """Write a table and plan a product from it."""
    pl.DataFrame(columns, strict=False).write_parquet(table)
    return make_plan(
        ProductChoices(**{"product": "p", "table": table, "label": "y", **roles})
    )


def excluded(plan: Plan) -> dict[str, str]:
    """Return the reason for each excluded column."""
    return {one.source: one.reason for one in plan.excluded}


def test_columns_get_their_roles(table: Path) -> None:
    """Fields, excluded columns, aliases and names of outcomes."""
    plan = planned(
        table,
        {"x": X, "x again": X, "word": WORD, "nr": range(ROWS), "a": Y, "y": Y},
        drop=("word",),
    )
    assert [one.name for one in plan.fields] == ["x"]
    assert set(excluded(plan)) == {"x again", "word", "nr", "a"}
    assert plan.aliases == {"label": "y"}
    assert (plan.outcome, plan.other) == ("y_1", "not_y_1")


def test_rows_without_a_required_value_are_left_out(table: Path) -> None:
    """Outcome, id, time and amount are required; a note has the number of rows."""
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


def test_invalid_names_are_changed(table: Path) -> None:
    """Each is an alias; a column with a reserved name is excluded."""
    columns = {"größe in cm": X, "amount": WORD, "label": X + 1, "y": Y}
    plan = planned(table, columns)
    assert [one.name for one in plan.fields] == ["gr_e_in_cm", "amount_field"]
    assert plan.aliases["amount_field"] == "amount"
    assert "rename it" in excluded(plan)["label"]


def test_strongest_of_very_many_columns_are_used(table: Path) -> None:
    """2,000 random columns and two that predict the outcome."""
    columns = {f"c{at}": CHANCE.normal(size=ROWS).round(2) for at in range(1_998)}
    columns |= {"good": X, "y": Y}
    columns["word"] = np.where((Y == 1) | (WORD == "red"), WORD, "grey")
    plan = planned(table, columns, most_fields=20)
    names = [one.name for one in plan.fields]
    assert len(names) == 20
    assert {"good", "word"} <= set(names)
    assert len(plan.excluded) == 1_980


def test_held_out_rows_do_not_influence_the_selection(table: Path) -> None:
    """A column that predicts only the last fifth in time is not selected."""
    late = np.arange(ROWS) >= ROWS * 0.8
    honest = X + CHANCE.normal(size=ROWS)
    columns = {"late": np.where(late, Y * 9.0, X[::-1]), "early": honest, "y": Y}
    columns["when"] = [f"2024-{1 + at // 28:02}-{1 + at % 28:02}" for at in range(336)]
    columns["when"] += [f"2025-{1 + at // 28:02}-{1 + at % 28:02}" for at in range(64)]
    plan = planned(table, columns, time="when", most_fields=1)
    assert [one.name for one in plan.fields] == ["early"]


def test_clock_is_excluded(table: Path) -> None:
    """A column that only rises with time predicts nothing for later rows."""
    when = 1_700_000_000 + 3_600 * CHANCE.permutation(ROWS)
    plan = planned(
        table, {"x": X, "step": when * 2 - 10**9, "when": when, "y": Y}, time="when"
    )
    assert excluded(plan)["step"] == "only rises with time: a clock"
    assert plan.at_night


def test_leaking_column_can_be_used_by_name(table: Path) -> None:
    """A note warns about a column that is nearly as good."""
    near = Y + CHANCE.normal(size=ROWS) * 0.3
    columns = {"x": X, "same": Y, "near": near.round(2), "y": Y}
    assert "same" in excluded(planned(table, columns))
    plan = planned(table, columns, keep=("same",))
    assert [one.name for one in plan.fields] == ["x", "same", "near"]
    assert len(plan.notes) == 1
    assert plan.notes[0].startswith("'near' alone has an AUC of 0.9")


def test_very_many_rows_are_limited(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the newest if they have times; else to random rows, the same each time."""
    monkeypatch.setattr(table_reading, "MOST_ROWS", 300)
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
def test_unusable_choice_is_refused_in_one_sentence(
    table: Path, roles: dict[str, Any], words: str
) -> None:
    """It names the option or the column."""
    with pytest.raises(InputError) as caught:
        planned(table, {"x": X, "word": WORD, "y": Y, "nr": range(ROWS)}, **roles)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_with_reserved_names_get_their_roles(table: Path) -> None:
    """If the values allow it: a column with duplicates is no id, and is excluded."""
    columns = {"x": X, "y": Y, "transaction_id": range(ROWS)}
    columns["event_time"] = [1_700_000_000 + at * 3_600 for at in range(ROWS)]
    plan = planned(table, columns)
    assert (plan.choices.id, plan.choices.time) == ("transaction_id", "event_time")
    assert len(plan.notes) == 2
    columns |= {"transaction_id": WORD, "event_time": WORD}
    plan = planned(table, columns)
    assert (plan.choices.id, plan.choices.time, plan.notes) == (None, None, ())
    assert set(excluded(plan)) == {"transaction_id", "event_time"}


@pytest.mark.parametrize("option", ["sensitive", "entities", "time"])
def test_column_of_lists_has_no_role(table: Path, option: str) -> None:
    """It can only be excluded."""
    columns = {"x": X, "y": Y, "many": [[1, 2]] * ROWS}
    role = "many" if option == "time" else ("many",)
    with pytest.raises(InputError, match="holds List"):
        planned(table, columns, **{option: role})
    assert len(planned(table, columns, drop=("many",)).fields) == 1
