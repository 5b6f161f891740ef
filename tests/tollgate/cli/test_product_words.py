"""A model's own words, in its order, decide what `product new` serves."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pytest
import yaml
from xgboost import XGBClassifier

from tests.support.server.categorical_models import (
    SIZES,
    code_rows,
    farthest,
    ordered_rows,
    served,
)
from tollgate.cli import main

New = Callable[..., tuple[int, str]]


@pytest.fixture
def new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> New:
    """Run `tollgate product new shop` in a repository; return status and last words."""
    (tmp_path / "models").mkdir()

    def new_(*words: object) -> tuple[int, str]:
        common = ["--label", "bad", "--yes", "--repository", tmp_path / "models"]
        command = ["tollgate", "product", "new", "shop", *words, *common]
        monkeypatch.setattr(sys, "argv", list(map(str, command)))
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0), capsys.readouterr().err

    return new_


def lgb(rows: pd.DataFrame, label: pd.Series, **options: Any) -> Any:
    model = lightgbm.LGBMClassifier(n_estimators=30, n_jobs=1, verbose=-1)
    return model.fit(rows, label, **options)


def xgb(rows: pd.DataFrame, label: pd.Series) -> Any:
    model = XGBClassifier(n_estimators=30, n_jobs=1, enable_categorical=True)
    return model.fit(rows, label)


def save(model: Any, path: Path) -> Path:
    """Save a model as its library does."""
    if isinstance(model, XGBClassifier):
        model.save_model(path.with_suffix(".json"))
        return path.with_suffix(".json")
    model.booster_.save_model(path.with_suffix(".txt"))
    return path.with_suffix(".txt")


def vocabulary(folder: Path, name: str) -> list[str]:
    """Read a field's words out of the features.yaml that was written."""
    path = folder / "models" / "shop_features" / "1" / "features.yaml"
    (field,) = [
        one for one in yaml.safe_load(path.read_text())["fields"] if one["name"] == name
    ]
    return list(field["vocabulary"])


def categorical(rows: pd.DataFrame) -> pd.DataFrame:
    """Give sizes their order, and colours the order that a person wrote down."""
    return rows.assign(
        size=pd.Categorical(rows["size"], SIZES, ordered=True),
        colour=pd.Categorical(rows["colour"], ["red", "green", "blue"]),
    ).drop(columns="bad")


@pytest.mark.slow
@pytest.mark.parametrize("train", [lgb, xgb])
def test_ordered_words_are_served_in_the_order_of_the_model(
    new: New, tmp_path: Path, train: Callable[..., Any]
) -> None:
    """Raw rows, some without a word or with an unseen one, against the estimator."""
    rows = ordered_rows(2000, seed=3)
    model = train(categorical(rows), rows["bad"])
    rows.to_csv(tmp_path / "table.csv", index=False)
    saved = save(model, tmp_path / "model")
    status, _ = new("--from", tmp_path / "table.csv", "--model", saved)
    assert status == 0
    assert vocabulary(tmp_path, "size") == SIZES
    assert vocabulary(tmp_path, "colour") == ["red", "green", "blue"]
    asked = ordered_rows(600, seed=4).drop(columns="bad")
    asked.loc[:19, "size"] = None
    asked.loc[20:39, "colour"] = None
    given = asked.fillna({"size": "", "colour": ""})
    given.loc[40:49, "size"], given.loc[50:59, "colour"] = "giant", "mauve"
    asked.loc[40:49, "size"], asked.loc[50:59, "colour"] = None, None
    expected = model.predict_proba(categorical(asked.assign(bad=0)))[:, 1]
    answers = served(tmp_path / "models", "shop", given, state=tmp_path / "state")
    assert farthest(answers, expected) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("train", [lgb, xgb])
def test_all_words_of_a_model_are_served(
    new: New, tmp_path: Path, train: Callable[..., Any]
) -> None:
    """150 codes; 100 is where the vocabulary of a table ends."""
    rows, codes = code_rows(4000, count=150, seed=5)
    frame = rows[["code", "x"]].assign(code=pd.Categorical(rows["code"], codes))
    model = train(frame, rows["bad"])
    rows.to_csv(tmp_path / "table.csv", index=False)
    saved = save(model, tmp_path / "model")
    status, _ = new("--from", tmp_path / "table.csv", "--model", saved)
    assert status == 0
    assert vocabulary(tmp_path, "code") == codes
    asked = rows[["code", "x"]].head(600)
    answers = served(tmp_path / "models", "shop", asked, state=tmp_path / "state")
    assert farthest(answers, model.predict_proba(frame.head(600))[:, 1]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "known"),
    [
        (lgb, [30, 10, 20]),
        (xgb, [30, 10, 20]),
        (lgb, [2.5, 0.5, 1.0]),
        (lgb, [True, False]),
    ],
)
def test_categories_that_are_numbers_are_served_as_the_library_maps_them(
    new: New, tmp_path: Path, train: Callable[..., Any], known: list[Any]
) -> None:
    """Integers, fractions and truths; the table holds them as such."""
    random = np.random.default_rng(7)
    code = random.integers(0, len(known), 1500)
    x = np.rint(8 * random.normal(size=1500)) / 8
    logit = np.array([-1.5, 1.5, 0.0])[code] + x
    rows = pd.DataFrame({"code": np.array(known)[code], "x": x})
    label = pd.Series((random.random(1500) < 1 / (1 + np.exp(-logit))).astype(int))
    frame = rows.assign(code=pd.Categorical(rows["code"], known))
    model = train(frame, label)
    table = {"code": rows["code"].tolist(), "x": x, "bad": label.tolist()}
    pl.DataFrame(table).write_parquet(tmp_path / "table.parquet")
    saved = save(model, tmp_path / "model")
    status, _ = new("--from", tmp_path / "table.parquet", "--model", saved)
    assert status == 0
    words = vocabulary(tmp_path, "code")
    assert words == [str(one).lower() for one in known]
    asked = pd.DataFrame({"code": np.array(words)[code], "x": x}).head(300)
    answers = served(tmp_path / "models", "shop", asked, state=tmp_path / "state")
    assert farthest(answers, model.predict_proba(frame.head(300))[:, 1]) < 1e-6


def coded(rows: pd.DataFrame) -> pd.DataFrame:
    """Hand codes to a model instead of words."""
    frame = categorical(rows)
    return frame.assign(size=frame["size"].cat.codes, colour=frame["colour"].cat.codes)


def accented(rows: pd.DataFrame) -> pd.DataFrame:
    """Use a word that XGBoost cuts off in its file."""
    frame = categorical(rows)
    return frame.assign(colour=frame["colour"].cat.rename_categories({"red": "rée"}))


@pytest.mark.parametrize(
    ("make", "options", "column"),
    [
        (lambda rows: lgb(coded(rows), rows["bad"]), {}, "size"),
        (
            lambda rows: lgb(
                coded(rows), rows["bad"], categorical_feature=["size", "colour"]
            ),
            {},
            "size",
        ),
        (lambda rows: xgb(coded(rows), rows["bad"]), {}, "size"),
        (lambda rows: xgb(accented(rows), rows["bad"]), {"red": "rée"}, "colour"),
    ],
)
def test_words_that_no_file_lists_are_demanded(
    new: New,
    tmp_path: Path,
    make: Callable[[pd.DataFrame], Any],
    options: dict[str, str],
    column: str,
) -> None:
    """They are never guessed from the table; nothing is written."""
    rows = ordered_rows(800, seed=3)
    saved = save(make(rows), tmp_path / "model")
    rows.replace({"colour": options}).to_csv(tmp_path / "table.csv", index=False)
    status, said = new("--from", tmp_path / "table.csv", "--model", saved)
    assert status == 2
    assert f"--words: {column}: {saved} was trained on" in said
    assert "list them in a file in the order of their codes" in said
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.slow
def test_words_that_a_person_states_are_served(new: New, tmp_path: Path) -> None:
    """The model was trained on codes; its author wrote their words down."""
    rows = ordered_rows(2000, seed=3)
    model = xgb(coded(rows), rows["bad"])
    rows.to_csv(tmp_path / "table.csv", index=False)
    stated = {"size": SIZES, "colour": ["red", "green", "blue"]}
    (tmp_path / "words.json").write_text(json.dumps(stated))
    options = ("--model", save(model, tmp_path / "model"))
    status, _ = new(
        "--from",
        tmp_path / "table.csv",
        *options,
        "--words",
        tmp_path / "words.json",
    )
    assert status == 0
    record = tmp_path / "models" / "shop_model" / "1" / "artifact.json"
    known = json.loads(record.read_text())["categories"]
    assert known["size"] == {"codes": True, "known": SIZES}
    asked = rows.drop(columns="bad").head(300)
    answers = served(tmp_path / "models", "shop", asked, state=tmp_path / "state")
    assert farthest(answers, model.predict_proba(coded(rows).head(300))[:, 1]) < 1e-6


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        (
            {"size": ["medium", "small", "large", "huge"]},
            "size: word 0 is 'medium' here and 'small' in the model's file",
        ),
        ({"siz": SIZES}, "'siz' is no feature of the model"),
        ({"size": "small"}, "is no mapping of columns to lists of words"),
    ],
)
def test_stated_words_that_contradict_the_file_are_refused(
    new: New, tmp_path: Path, stated: dict[str, Any], says: str
) -> None:
    """One line names the file, the column, and the first word that differs."""
    rows = ordered_rows(800, seed=3)
    rows.to_csv(tmp_path / "table.csv", index=False)
    saved = save(lgb(categorical(rows), rows["bad"]), tmp_path / "model")
    (tmp_path / "words.json").write_text(json.dumps(stated))
    options = ("--model", saved, "--words", tmp_path / "words.json")
    status, said = new("--from", tmp_path / "table.csv", *options)
    assert status == 2
    assert "words.json" in said
    assert says in said


def test_words_that_no_vocabulary_can_hold_are_refused_by_name(
    new: New, tmp_path: Path
) -> None:
    """More than 10,000, or one of more than 128 bytes: never cut."""
    rows, codes = code_rows(800, count=20, seed=5)
    rows.to_csv(tmp_path / "table.csv", index=False)
    many = [*codes, *(f"z{one}" for one in range(10_000))]
    for known, says in ((many, "has 10,020 words"), ([*codes, "é" * 65], "'ééé")):
        frame = rows[["code", "x"]].assign(code=pd.Categorical(rows["code"], known))
        saved = save(lgb(frame, rows["bad"]), tmp_path / "model")
        status, said = new("--from", tmp_path / "table.csv", "--model", saved)
        assert status == 2
        assert says in said
        assert "code" in said


@pytest.mark.slow
def test_words_that_contradict_the_record_are_refused_everywhere(
    new: New,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`check`, `convert --product` and `publish` name the field and the first word."""
    rows = ordered_rows(1200, seed=3)
    rows.to_csv(tmp_path / "table.csv", index=False)
    saved = save(lgb(categorical(rows), rows["bad"]), tmp_path / "model")
    assert new("--from", tmp_path / "table.csv", "--model", saved)[0] == 0
    where = ("--product", "shop", "--repository", tmp_path / "models")

    def run(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", list(map(str, ("tollgate", *words, *where))))
        monkeypatch.setenv("COLUMNS", "400")
        try:
            main()
        except SystemExit as ended:
            said = capsys.readouterr()
            return int(ended.code or 0), said.out + said.err
        said = capsys.readouterr()
        return 0, said.out + said.err

    status, said = run("convert", saved, "--out", tmp_path / "sound")
    assert (status, said.count("Error")) == (0, 0)
    path = tmp_path / "models" / "shop_features" / "1" / "features.yaml"
    sound = path.read_text()
    for words, model, here in (
        ("[medium, small, large, huge]", "'small'", "'medium'"),
        ("[small, medium, large]", "'huge'", "absent"),
    ):
        path.write_text(sound.replace("[small, medium, large, huge]", words))
        place = 0 if here != "absent" else 3
        differ = f"word {place} is {model} in {{}} and {here} in the vocabulary of "
        differ += "field 'size'"
        status, said = run("check")
        assert status != 0
        assert differ.format("artifact.json") in " ".join(said.split())
        status, said = run("convert", saved, "--out", tmp_path / "bad")
        assert status == 2
        assert differ.format("it") in said
        assert not (tmp_path / "bad").exists()
        status, said = run("publish", tmp_path / "sound")
        assert status == 2
        assert differ.format("artifact.json") in said


@pytest.mark.slow
def test_a_model_that_one_column_beats_is_shipped_with_a_warning(
    new: New, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained on labels drawn by chance; the output and the card name the column."""
    rows = ordered_rows(1500, seed=3)
    rows["x"] += 2 * rows["bad"]
    chance = np.random.default_rng(0).integers(0, 2, len(rows))
    rows.to_csv(tmp_path / "table.csv", index=False)
    saved = save(lgb(categorical(rows), pd.Series(chance)), tmp_path / "model")
    status, _ = new("--from", tmp_path / "table.csv", "--model", saved)
    assert status == 0
    card = (tmp_path / "models" / "shop_model" / "1" / "card.md").read_text()
    assert "WARNING: " in card
    assert "column x alone has an AUC of 0." in card or "a plain" in card
