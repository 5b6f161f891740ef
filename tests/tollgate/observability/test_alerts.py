"""Alerts follow from slo.yaml, ask for what exists, and have a page each."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from tollgate.cli.app import app
from tollgate.metrics import metrics
from tollgate.observability.alerts import (
    FAILED,
    LATE,
    WINDOWS,
    bucket_s,
    rule_files,
)
from tollgate.observability.metric_selection import restrict
from tollgate.repository.releases.release_file import product_names
from tollgate.worker import STUCK_FAILURES

HOUSE = Path(__file__).parents[3]
REPOSITORY = HOUSE / "model_repository"
COMMITTED = HOUSE / "helm" / "tollgate" / "files" / "alerts"
PRODUCTS = product_names(REPOSITORY)
# A series in a query, and its matchers as far as the product's own.
SERIES = re.compile(
    r'\b(?:tollgate[_:]|nv_)[\w:]+(?:\{(?:(?:job|namespace)="\w+",?)*)?'
)


def rules(text: str) -> list[dict[str, Any]]:
    """Read the rules of a file."""
    groups = msgspec.yaml.decode(text)["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expression(files: dict[str, str], name: str, *, file: str) -> str:
    """Find what an alert asks."""
    (found,) = [one["expr"] for one in rules(files[file]) if one.get("alert") == name]
    return str(found)


def test_the_committed_files_are_what_the_command_writes(tmp_path: Path) -> None:
    """Byte for byte, and no other file lies there."""
    done = CliRunner().invoke(
        app, ["alerts", "--out", str(tmp_path), "--repository", str(REPOSITORY)]
    )
    assert done.exit_code == 0, done.output
    written = {one.name: one.read_text() for one in tmp_path.iterdir()}
    assert written == {one.name: one.read_text() for one in COMMITTED.iterdir()}


def test_the_first_line_names_a_source_that_exists() -> None:
    """Of a product without slo.yaml it says so, and which file to add."""
    heads = {one.name: one.read_text().splitlines()[0] for one in COMMITTED.iterdir()}
    assert not (REPOSITORY / "credit" / "slo.yaml").exists()
    assert "credit has no slo.yaml. Add credit/slo.yaml" in heads.pop("slo-credit.yaml")
    for head in heads.values():
        (source,) = re.findall(r"change (\S+) and", head)
        assert (HOUSE / source).is_file() or (REPOSITORY / source).is_file(), head


def test_a_repository_without_products_is_refused_in_one_line(tmp_path: Path) -> None:
    """Exit status 2, nothing written."""
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, ["alerts", "--out", str(out), "--repository", str(tmp_path)]
    )
    assert done.exit_code != 0
    assert not out.exists()


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    """The address in the annotation is a file that begins with the alert's name."""
    files = rule_files(REPOSITORY, products=PRODUCTS)
    pages = set()
    for text in files.values():
        for rule in rules(text):
            if "alert" in rule:
                page = HOUSE / rule["annotations"]["runbook_url"]
                assert page.read_text().startswith(f"# {rule['alert']}\n")
                pages.add(page.name)
    folder = HOUSE / "docs" / "runbooks"
    assert {one.name for one in folder.iterdir()} == pages | {"README.md"}
    documented = (HOUSE / "docs" / "alerts.md").read_text() + (
        folder / "README.md"
    ).read_text()
    assert all(page in documented for page in pages)


@pytest.mark.parametrize("product", PRODUCTS)
def test_alerts_ask_for_series_that_exist(product: str) -> None:
    """Each name is in the table of metrics or recorded by the rules themselves."""
    known = {name for one in metrics() for name in one.row.series}
    known |= {f"{name}{window}" for name in (FAILED, LATE) for window in WINDOWS}
    files = rule_files(REPOSITORY, products=[product])
    for rule in [rule for text in files.values() for rule in rules(text)]:
        if "alert" in rule:
            asked = re.findall(r"\b(?:tollgate[_:]|nv_)\w+(?::\w+)?", rule["expr"])
            assert asked, rule["alert"]
            assert set(asked) <= known, rule["alert"]


def test_limits_follow_from_slo_yaml(tmp_path: Path) -> None:
    """Another promise, other numbers: budget, bucket, p99 and queue."""
    shutil.copytree(REPOSITORY, tmp_path / "models")
    (tmp_path / "models" / "fraud" / "slo.yaml").write_text(
        "latency_objective_ms: 30\nlatency_target_ms: 10\nobjective_percent: 99\n"
    )
    files = rule_files(tmp_path / "models", products=["fraud"])
    file = "slo-fraud.yaml"
    assert 'le="0.03"' in files[file]
    burn = expression(files, "TollgateAvailabilityBurnFast", file=file)
    assert f'{FAILED}1h{{job="tollgate",product="fraud"}} > 0.144' in burn
    slow = expression(files, "TollgateLatencyBurnSlow", file=file)
    assert f'{LATE}3d{{job="tollgate",product="fraud"}} > 0.01 and' in slow
    assert expression(files, "TollgateLatencyHigh", file=file).endswith("> 0.02")
    assert expression(files, "TollgateQueueLong", file=file).endswith("> 0.005")


@pytest.mark.parametrize(
    ("given", "of"),
    [
        ((), 'job="tollgate"'),
        (("--select", "namespace=pay", "--select", "job=b"), 'job="b",namespace="pay"'),
    ],
)
def test_no_rule_mixes_installations(
    tmp_path: Path, given: tuple[str, ...], of: str
) -> None:
    """Every series of every rule is of one, and what it makes says which."""
    folder = ("--out", str(tmp_path), "--repository", str(REPOSITORY))
    done = CliRunner().invoke(app, ["alerts", *folder, *given])
    assert done.exit_code == 0, done.output
    made = [one for path in tmp_path.iterdir() for one in rules(path.read_text())]
    assert len(made) > 50
    for rule in made:
        asked = SERIES.findall(rule["expr"])
        matchers = [one.rstrip(",").partition("{")[2] for one in asked]
        assert set(matchers) == {of}, rule["expr"]
        labels = [f'{key}="{one}"' for key, one in rule["labels"].items()]
        assert set(of.split(",")) <= set(labels)


def test_rules_of_everything_select_nothing() -> None:
    """As they are written for a Prometheus that has one installation."""
    files = rule_files(REPOSITORY, products=["fraud"], select={})
    assert not any("job" in text for text in files.values())
    assert (
        "expr: 'absent(tollgate_ready{product=\"fraud\"})'" in files["slo-fraud.yaml"]
    )


@pytest.mark.parametrize("given", ["job", "a b=c", "job=", 'job=a"b', "product=fraud"])
def test_what_selects_nothing_is_refused(tmp_path: Path, given: str) -> None:
    """In one line, and nothing is written."""
    out = tmp_path / "out"
    folder = ("--out", str(out), "--repository", str(REPOSITORY))
    done = CliRunner().invoke(app, ["alerts", *folder, "--select", given])
    assert "--select" in str(done.exception)
    assert not out.exists()


def test_a_name_in_quotes_is_no_series() -> None:
    """A model may be called as a metric is."""
    asked = 'sum(nv_inference_count{model="tollgate_x"}) - tollgate_ready'
    assert restrict(asked, 'job="a"') == (
        'sum(nv_inference_count{job="a",model="tollgate_x"}) - tollgate_ready{job="a"}'
    )


def test_one_product_has_no_rules_of_another() -> None:
    """So that nobody is woken for a product that is not served."""
    files = rule_files(REPOSITORY, products=["fraud"])
    assert sorted(files) == ["slo-fraud.yaml", "tollgate.yaml"]
    for other in {*PRODUCTS} - {"fraud"}:
        assert not any(other in text for text in files.values())


@pytest.mark.parametrize(
    ("objective_ms", "bucket"), [(50, 0.05), (55, 0.05), (20, 0.02), (0.1, 0.0005)]
)
def test_requests_in_time_are_counted_by_a_bucket_that_is_not_later(
    objective_ms: float, bucket: float
) -> None:
    """The objective's own, else the next below; the first one for less than that."""
    assert bucket_s(objective_ms) == bucket


def test_a_loop_is_stuck_for_the_alert_when_it_is_for_readyz() -> None:
    """The alert and the supervisor's list count the same number of failures."""
    files = rule_files(REPOSITORY, products=[], select={})
    asked = expression(files, "TollgateLoopStuck", file="tollgate.yaml")
    assert asked.endswith(f"(tollgate_background_failures) >= {STUCK_FAILURES}")
