"""`--json`: standard output is one JSON value with the keys that the page states."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml

from tollgate.audit.chain.verification import VerificationResult
from tollgate.audit.releases.journal_replay import ReplayResult
from tollgate.audit.releases.labelled_decisions import ReleaseAccuracy
from tollgate.audit.review.explanation import ExplainedRecord
from tollgate.challenger.trial_report import TrialReport
from tollgate.cli import console, main
from tollgate.cli.app import app
from tollgate.redecide import PolicyComparison
from tollgate.server.publishing import Published

CHECKOUT = Path(__file__).parents[3]
REPOSITORY = CHECKOUT / "model_repository"
SPEC = REPOSITORY / "fraud_features" / "1" / "features.yaml"
POLICY = REPOSITORY / "fraud_decision" / "1" / "policy.yaml"
PAGE = (CHECKOUT / "docs" / "commands.md").read_text()
ROWS = re.findall(r"^\| (`.+`) \| (.+) \|$", PAGE.partition("## JSON")[2], re.M)
KEYS = {
    command: (
        re.findall(r"`(\w+)`", re.split(r"; with ", keys)[0]),
        keys.startswith("[]"),
    )
    for commands, keys in ROWS
    for command in re.findall(r"`([^`]+)`", commands)
}
# They change what is there, serve or work until they are stopped, or write files.
SILENT = {
    *("demo", "product new", "product remove", "simulate", "features build"),
    *("release activate", "release rollback", "release approve", "release render"),
    *("challenger start", "challenger raise", "challenger promote"),
    *("challenger stop", "challenger run", "up", "serve", "bundle", "stream", "feed"),
    *("journal run", "gateway run", "gateway metrics", "gateway key"),
    *("gateway certificates", "engine", "alerts", "dashboards"),
    *("alarms run", "alarms deliver", "door", "edge key"),
    *("edge pack", "edge run", "edge sync", "edge release"),
    *("edge rollback", "edge collect"),
}
STRUCTS = {
    "journal verify": VerificationResult.__struct_fields__,
    "journal replay": ReplayResult.__struct_fields__,
    "challenger report": TrialReport.__struct_fields__,
    "policy simulate": PolicyComparison.__struct_fields__,
    "labels accuracy": ReleaseAccuracy.__struct_fields__,
    "explain": (*ExplainedRecord.__struct_fields__, "margin"),
    "publish": (*Published.__struct_fields__, "product"),
}

Ask = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Ask:
    """Run a command in a folder with the models; status, JSON, standard error."""
    shutil.copytree(REPOSITORY, tmp_path / "model_repository")
    monkeypatch.chdir(tmp_path)

    def ask_(*words: str) -> tuple[int, Any, str]:
        monkeypatch.setattr(sys, "argv", ["tollgate", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        output, said = capfd.readouterr()
        assert "NaN" not in output
        assert isinstance(ended.value.code, int)
        return ended.value.code, json.loads(output), said

    return ask_


def leaves(command: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Name every command that is no group."""
    found = getattr(command, "commands", None)
    if found is None:
        return {" ".join(path): command}
    return {
        name: one
        for part, below in found.items()
        for name, one in leaves(below, (*path, part)).items()
    }


def test_every_command_that_reports_takes_json_and_the_page_states_its_keys() -> None:
    """Each of the others is named here, and none of them has the option."""
    with_json = {
        name
        for name, one in leaves(typer.main.get_command(app)).items()
        if any("--json" in parameter.opts for parameter in one.params)
    }
    assert with_json == set(KEYS)
    assert set(leaves(typer.main.get_command(app))) - with_json == SILENT


@pytest.mark.parametrize("command", STRUCTS)
def test_the_page_states_the_fields_of_a_report(command: str) -> None:
    """Key by key."""
    assert set(KEYS[command][0]) == set(STRUCTS[command])


OFFLINE = {
    "check": ("check",),
    "features diff": ("features", "diff", str(SPEC), str(SPEC)),
    "features show": ("features", "show"),
    "metrics": ("metrics",),
    "policy check": ("policy", "check", str(POLICY)),
    "product list": ("product", "list"),
    "release diff": ("release", "diff", "fraud-1"),
    "release history": ("release", "history"),
    "release list": ("release", "list"),
    "release show": ("release", "show"),
    "release versions": ("release", "versions"),
}


@pytest.mark.parametrize("command", OFFLINE)
def test_a_report_has_the_keys_that_the_page_states(command: str, ask: Ask) -> None:
    """No more and no fewer; nothing else is on standard output."""
    status, found, _ = ask(*OFFLINE[command], "--json")
    keys, is_list = KEYS[command]
    assert status == 0
    assert isinstance(found, list) is is_list
    assert found
    for one in found if is_list else [found]:
        assert set(one) == set(keys)


def test_a_policy_that_differs_is_reported_with_its_status(
    ask: Ask, tmp_path: Path
) -> None:
    """The threshold that was changed by hand, in where it is and in words."""
    text = POLICY.read_text()
    assert "decline: 0.80" in text
    (tmp_path / "new.yaml").write_text(
        text.replace("decline: 0.80", "decline: 0.70", 1)
    )
    status, found, _ = ask("policy", "diff", str(POLICY), "new.yaml", "--json")
    assert status == 1
    assert [set(one) for one in found] == [set(KEYS["policy diff"][0])]
    assert "0.7" in found[0]["words"]
    assert "0.8" in found[0]["words"]


def test_a_conversion_is_reported_as_json(ask: Ask, tmp_path: Path) -> None:
    """What the model's file says, the size of the graph, and its proof."""
    import xgboost

    draw = np.random.default_rng(0)
    rows = draw.normal(size=(200, 4))
    model = xgboost.XGBClassifier(n_estimators=7, max_depth=3)
    model.fit(rows, rows[:, 0] > 0)
    model.save_model(tmp_path / "model.json")
    status, found, said = ask("convert", "model.json", "--out", "converted", "--json")
    assert status == 0
    assert set(found) == set(KEYS["convert"][0])
    assert (found["framework"], found["trees"]) == ("xgboost", 7)
    graph = tmp_path / "converted" / "model.onnx"
    assert found["bytes"] == graph.stat().st_size
    assert [one["flips"] for one in found["proof"]] == [0] * len(found["proof"])
    assert found["proof"]
    for line in (*found["proven_against"], *found["warnings"]):
        assert line in said


def test_products_are_listed_as_their_files_say(ask: Ask) -> None:
    """Names, releases and versions, read here by json alone."""
    expected = []
    for path in sorted(REPOSITORY.glob("*/release.json")):
        release = json.loads(path.read_text())
        expected.append(
            {
                "product": path.parent.name,
                "release": release["name"],
                "versions": release["versions"],
            }
        )
    assert ask("product", "list", "--json")[1] == expected


def test_features_and_policy_are_counted_as_yaml_has_them(ask: Ask) -> None:
    """By PyYAML."""
    features = yaml.safe_load(SPEC.read_text())["features"]
    found = ask("features", "show", "--json")[1]
    assert [one["feature"] for one in found] == [one["name"] for one in features]
    policy = yaml.safe_load(POLICY.read_text())
    found = ask("policy", "check", str(POLICY), "--json")[1]
    assert found["rules"] == len(policy["rules"])
    assert found["lists"] == len(policy["lists"])


def test_a_finding_of_check_is_in_the_json(ask: Ask, tmp_path: Path) -> None:
    """As in the text, with status 2; `--format json` prints the same."""
    (tmp_path / "model_repository" / "fraud_model" / "1" / "model.onnx").unlink()
    status, found, _ = ask("check", "--json")
    assert status == found["exit_status"] == 2
    assert any("model.onnx" in json.dumps(one) for one in found["findings"])
    assert ask("check", "--format", "json")[1] == found


def test_what_json_has_not_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    """No number, or an infinite one; NumPy's values and paths are plain."""
    console.print_json(
        {"a": float("nan"), "b": np.float64("inf"), "c": np.arange(2), "d": Path("x")}
    )
    found = json.loads(capsys.readouterr().out)
    assert found == {"a": None, "b": None, "c": [0, 1], "d": "x"}
