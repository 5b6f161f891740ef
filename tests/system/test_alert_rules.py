"""Prometheus' own tool on the alerts: they are rules, and tell what they are for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.support.observability.alert_cases import CASES, document

pytestmark = pytest.mark.system("promtool")

RULES = Path(__file__).parents[2] / "helm" / "tollgate" / "files" / "alerts"
FILES = [str(RULES / name) for name in ("slo-fraud.yaml", "tollgate.yaml")]


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False
    )


def alerts() -> dict[str, dict[str, str]]:
    """Read the alerts of fraud: name -> annotations."""
    return {
        rule["alert"]: rule["annotations"]
        for name in FILES
        for group in msgspec.yaml.decode(Path(name).read_bytes())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


def test_promtool_takes_every_rule() -> None:
    """All committed files, those of other products too."""
    files = sorted(map(str, RULES.glob("*.yaml")))
    done = promtool("check", "rules", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(files) >= 3


def test_every_alert_is_silent_before_and_told_after(tmp_path: Path) -> None:
    """Each with exactly its labels; none is without a case."""
    assert sorted(case.alert for case in CASES) == sorted(alerts())
    files = []
    for interval in sorted({case.interval for case in CASES}):
        files.append(tmp_path / f"{interval}.test.yaml")
        made = document(FILES, alerts(), interval=interval)
        files[-1].write_bytes(msgspec.yaml.encode(made))
    done = promtool("test", "rules", *map(str, files))
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_happens_to_another_installation_is_not_told(tmp_path: Path) -> None:
    """The same series by another job, and none of ours: that none is there is all."""
    made = document(FILES, alerts(), interval="1m", job="other")
    made["tests"] = [one for one in made["tests"] if one["name"] != "TollgateDown"]
    assert len(made["tests"]) >= 18
    tests = tmp_path / "other.test.yaml"
    tests.write_bytes(msgspec.yaml.encode(made))
    done = promtool("test", "rules", str(tests))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_case_that_is_wrong_fails(tmp_path: Path) -> None:
    """The check can fail: another label, and promtool says so."""
    made = document(FILES, alerts(), interval="1m")
    made["tests"] = made["tests"][:1]
    expected = made["tests"][0]["alert_rule_test"][1]["exp_alerts"][0]
    expected["exp_labels"] = {"severity": "ticket", "product": "fraud"}
    tests = tmp_path / "wrong.test.yaml"
    tests.write_bytes(msgspec.yaml.encode(made))
    assert promtool("test", "rules", str(tests)).returncode == 1
