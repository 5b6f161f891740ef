"""`tollgate check` as a person and a pipeline use it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.products.committed_product import copy_product
from tollgate.cli.app import app
from tollgate.errors import InputError
from tollgate.repository.lint.linting import RULES, table

MODEL = "fraud_model/config.pbtxt"


def run(*arguments: object) -> Result:
    """Run `tollgate check`."""
    return CliRunner().invoke(app, ["check", *(str(one) for one in arguments)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a copy of the committed fraud product."""
    copy_product(tmp_path / "model_repository")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(path: Path, old: str, new: str) -> int:
    """Replace a text; the line it stands on."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return text.count("\n", 0, text.index(old)) + 1


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A repository without a product: one model whose queue is open."""
    folder = tmp_path / "foreign"
    (folder / "net/1").mkdir(parents=True)
    (folder / "net/config.pbtxt").write_text(
        'name: "net"\nbackend: "python"\nmax_batch_size: 4\ndynamic_batching { }\n'
    )
    (folder / "net/1/model.py").write_text("")
    return folder


def test_a_sound_product_is_named(folder: Path) -> None:
    """Status 0; what is only advice is counted and not shown."""
    done = run()
    assert done.exit_code == 0
    assert done.stdout == "fraud: sound\n"


def test_the_limits_of_this_machine_are_named(folder: Path) -> None:
    """The hard limit of open files, and why a server would not start with too few."""
    program = """
import resource, sys
from typer.testing import CliRunner
from tollgate.cli.app import app
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
print(CliRunner().invoke(app, ["check"]).output)
"""
    found = {}
    for soft, hard in ((300, 900), (200, 200)):
        done = subprocess.run(
            [sys.executable, "-c", program, str(soft), str(hard)],
            capture_output=True,
            text=True,
            check=True,
        )
        found[hard] = " ".join(done.stdout.split())
        assert "fraud: sound" in found[hard]
    # 900 less 160 and 30 for the one product: docs/operations.md.
    assert "900 open files: 710 connections" in found[900]
    assert "a process may have 200 files open here" in found[200]


def test_a_finding_has_severity_code_file_line_and_reason(folder: Path) -> None:
    """From where the person stands; the reason once for all findings of a rule."""
    delay = "max_queue_delay_microseconds: 1000"
    were = {"fraud_decision": 200, "fraud_model": 300}
    files = [f"model_repository/{step}/config.pbtxt" for step in were]
    lines = [
        edit(folder / file, f"max_queue_delay_microseconds: {was}", delay)
        for file, was in zip(files, were.values(), strict=True)
    ]
    done = run()
    assert done.exit_code == 2
    shown = done.stdout.splitlines()
    key = "dynamic_batching.max_queue_delay_microseconds"
    for line, file, number in zip(shown[:2], files, lines, strict=True):
        assert line.startswith(f"error    TG203  {file}:{number}: {key}: 1000 must")
    assert shown[2:4] == ["", f"TG203  {RULES['TG203'].title}"]
    assert [line.split()[0] for line in shown[4:7]] == ["why", "mend", "source"]
    assert len(shown) == 7


def test_a_warning_is_status_1_and_advice_none(folder: Path) -> None:
    """Two cores, four threads; then only the requested severity counts."""
    path = folder / "model_repository" / MODEL
    edit(path, 'string_value: "1"', 'string_value: "4"')
    for threshold, status, codes in (
        ("advice", 1, ["TG403", "TG205"]),
        ("warning", 1, ["TG403"]),
        ("error", 0, []),
    ):
        done = run("--cores", 2, "--severity", threshold)
        assert done.exit_code == status
        shown = re.findall(r"^\w+ +(TG\d+)  \S+: ", done.stdout, re.MULTILINE)
        assert shown == codes
    assert run("--cores", 4).exit_code == 0


def test_json_says_the_same(folder: Path) -> None:
    """One object, with rule and place of each finding."""
    path = folder / "model_repository" / MODEL
    line = edit(path, "max_batch_size: 32", "max_batch_size: 8")
    done = run("--format", "json")
    report = json.loads(done.stdout)
    assert report["exit_status"] == done.exit_code == 2
    (finding,) = report["findings"]
    rule = RULES["TG206"]
    assert finding == {
        "code": "TG206",
        "severity": "error",
        "file": f"model_repository/{MODEL}",
        "line": line,
        "where": "max_batch_size",
        "problem": "8 must be 32",
        "title": rule.title,
        "why": rule.why,
        "mend": rule.mend,
        "source": rule.source,
    }


def test_json_of_a_sound_repository_is_empty(folder: Path) -> None:
    """No line besides it."""
    done = run("--format", "json")
    assert json.loads(done.stdout) == {"findings": [], "exit_status": 0}


def test_any_repository_can_be_checked(foreign: Path) -> None:
    """Without a product, the models are counted."""
    done = run("--repository", foreign)
    assert (done.exit_code, done.stdout) == (0, "1 model(s): sound\n")
    done = run("--repository", foreign, "--severity", "advice")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"advice   TG205  {foreign}/net/config.pbtxt:4: ")
    assert done.stdout.endswith("1 model(s): sound\n")


def test_the_objective_is_the_products_own_or_is_given(folder: Path) -> None:
    """5 ms of delay are too much for 10, as slo.yaml or as the option says it."""
    slo = folder / "model_repository/fraud/slo.yaml"
    slo.write_text("latency_objective_ms: 10\n")
    done = run()
    assert done.exit_code == 1
    assert "5 ms of delay, for an answer within 10 ms; at most 4 leaves" in done.stdout
    assert run("--objective", 50).exit_code == 0
    slo.unlink()
    assert run("--objective", 10).exit_code == 1


def test_the_servers_file_is_checked_by_line(folder: Path) -> None:
    """With the repository, and by the release that its image has."""
    compose = folder / "compose.yaml"
    compose.write_text(
        "image: nvcr.io/nvidia/tritonserver:25.06-py3\n"
        "command:\n"
        "- tritonserver\n"
        "- --allow-http=false\n"
        "- --model-control-mode=poll\n"
        "- --grpc-restricted-protocol=shared-memory:key=secret\n"
    )
    done = run("--server-args", compose)
    assert done.exit_code == 2
    assert "error    TG501  compose.yaml:5: --model-control-mode: " in done.stdout
    assert "error    TG508  compose.yaml:1: Triton 25.06: CVE-2026-24206" in done.stdout
    assert "CVE-2025" not in done.stdout  # HTTP is off, shared memory restricted
    newer = run("--server-args", compose, "--target", "26.07").stdout
    assert "TG501" in newer
    assert "TG508" not in newer


def test_vulnerabilities_are_reported_for_a_release_only(foreign: Path) -> None:
    """Its version will do; nothing is known to be closed."""
    done = run("--repository", foreign, "--target", "2.51.0")
    assert done.exit_code == 2
    assert done.stdout.count("error    TG508  --target: Triton 24.10: CVE-") == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--repository", "nowhere"], "nowhere: no such model repository"),
        (["--target", "soon"], "target: 'soon' is no release"),
        (["--server-args", "nothing.sh"], "nothing.sh: cannot be read"),
        (["--model-config-name", "cpu"], "no model has configs/cpu.pbtxt"),
    ],
)
def test_what_cannot_be_asked_is_an_error(
    folder: Path, arguments: list[str], words: str
) -> None:
    """One line, and no report that could pass for a clean one."""
    done = run(*arguments)
    assert words in str(done.exception)
    assert done.stdout == ""
    assert getattr(done.exception, "exit_status", None) == 2


def test_a_product_that_is_not_there_is_found(folder: Path) -> None:
    """A named one is not passed over in silence."""
    done = run("--product", "credit")
    assert isinstance(done.exception, InputError)
    assert str(done.exception).endswith("; there is fraud")


def test_the_rules_can_be_listed() -> None:
    """As the papers show them."""
    done = run("--rules")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == list(table())
