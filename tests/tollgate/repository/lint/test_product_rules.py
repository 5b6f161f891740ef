"""Each rule for products of Tollgate is found in a copy of the real one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tollgate.errors import SpecError
from tollgate.repository.lint.lint_rule import Severity
from tollgate.repository.lint.linting import PRODUCT_ONLY, RULES, Issue, Question, lint
from tollgate.repository.lint.product_rules import require_sound
from tollgate.repository.releases.activation import compose_next
from tollgate.repository.releases.release_file import (
    Challenger,
    read_release,
    write_release,
)
from tollgate.repository.snapshot import RepositorySnapshot

ENSEMBLE = "fraud/config.pbtxt"
FEATURES = "fraud_features/config.pbtxt"
MODEL = "fraud_model/config.pbtxt"
DECISION = "fraud_decision/config.pbtxt"
SPEC = "fraud_features/1/features.yaml"
HOOK = "fraud_features/1/hook.py"
MONEY = 'def hook(request, features):\n    return {"money": request["amount"] * 1.0}\n'
POLICY = "fraud_decision/1/policy.yaml"
RELEASE = "fraud/release.json"
ARTIFACT = "fraud_model/1/artifact.json"
BATCH = "max_batch_size: 32"
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 200 }"
SCORE = '"score"        data_type: TYPE_FP32'
STEP_INPUT = '"amount"         data_type: TYPE_FP64   dims: [ 1 ]'

RANKING = {"TG325", "TG326", "TG327"}  # cases in test_ranking_rules.py

Edit = Callable[[str, str, str], None]
Edits = tuple[tuple[str, str, str], ...]

# code: (edits, file of the finding, text on its line, codes that come with it). A file
# of a version that changed no longer has the hash of the release: TG310.
BREAKS: dict[str, tuple[Edits, str, str, set[str]]] = {
    "TG120": (
        (
            (
                ENSEMBLE,
                '"score"        data_type: TYPE_FP32',
                '"score" data_type: TYPE_FP64',
            ),
        ),
        ENSEMBLE,
        '"score" ',
        {"TG104"},
    ),
    "TG121": (
        ((FEATURES, STEP_INPUT, f"{STEP_INPUT} optional: true"),),
        ENSEMBLE,
        'key: "amount"',
        set(),
    ),
    "TG122": (
        (
            (
                DECISION,
                "output [",
                'output [ { name: "context" data_type: TYPE_UINT8 dims: [ 966 ] },',
            ),
        ),
        ENSEMBLE,
        "name",
        set(),
    ),
    "TG201": (
        (
            (
                DECISION,
                BATCHING,
                "dynamic_batching {\ndefault_queue_policy {\n"
                "default_timeout_microseconds: 9 } }",
            ),
        ),
        DECISION,
        "default_timeout",
        set(),
    ),
    "TG202": (
        (
            (
                DECISION,
                BATCHING,
                "dynamic_batching {\ndefault_queue_policy {\nmax_queue_size: 9 } }",
            ),
        ),
        DECISION,
        "max_queue_size",
        set(),
    ),
    "TG203": (
        (
            (
                DECISION,
                BATCHING,
                "dynamic_batching {\nmax_queue_delay_microseconds: 900 }",
            ),
        ),
        DECISION,
        "max_queue_delay",
        set(),
    ),
    "TG206": (((DECISION, BATCH, "max_batch_size: 16"),), DECISION, "16", set()),
    "TG207": (((DECISION, BATCHING, ""),), DECISION, "name", set()),
    "TG301": (
        ((MODEL, BATCH, f"{BATCH}\nversion_policy {{ all {{ }} }}"),),
        MODEL,
        "version_policy",
        set(),
    ),
    "TG303": (
        ((ENSEMBLE, "model_version: -1", "model_version: 7"),),
        ENSEMBLE,
        "model_version: 7",
        set(),
    ),
    "TG310": (
        ((RELEASE, '"fraud_model": 1', '"fraud_model": 9'),),
        RELEASE,
        '"fraud_model": 9',
        set(),
    ),
    "TG312": (
        ((ARTIFACT, '"during_weekend"', '"during_week"'),),
        ARTIFACT,
        '"features"',
        {"TG310"},
    ),
    "TG314": (
        (
            (FEATURES, "dims: [ 966 ]", "dims: [ 970 ]"),
            (DECISION, "dims: [ 966 ]", "dims: [ 970 ]"),
        ),
        FEATURES,
        "970",
        set(),
    ),
    "TG315": (
        ((POLICY, "labels: [", "labels: [unknown, "),),
        POLICY,
        "labels:",
        {"TG310"},
    ),
    "TG317": (((SPEC, "version: 1", "version: 99"),), SPEC, "99", {"TG310"}),
    "TG318": (((POLICY, "version: 1", "version: 99"),), POLICY, "99", {"TG310"}),
    "TG319": (
        (("fraud/slo.yaml", "", "latency_objective_ms: soon\n"),),
        "fraud/slo.yaml",
        "",
        set(),
    ),
    "TG324": (
        (
            ("fraud/slo.yaml", "", "form: fused\n"),
            (MODEL, "KIND_CPU", "KIND_GPU"),
        ),
        MODEL,
        "KIND_GPU",
        set(),
    ),
    "TG321": (
        (("fraud/gates.yaml", "", "min_rows: few\n"),),
        "fraud/gates.yaml",
        "min_rows",
        set(),
    ),
    "TG322": (
        (
            (HOOK, "", "import numpy\nimport time\n\n\n" + MONEY),
            (SPEC, "version: 1", "version: 1\nhook: hook.py"),
            (SPEC, "field: amount", "hook: money"),
        ),
        HOOK,
        "import time",
        {"TG310"},
    ),
    "TG401": (
        ((DECISION, BATCH, f'{BATCH}\nmodel_warmup [ {{ name: "1" }} ]'),),
        DECISION,
        "model_warmup",
        set(),
    ),
    "TG402": (
        ((ENSEMBLE, BATCH, f"{BATCH}\nresponse_cache {{ enable: true }}"),),
        ENSEMBLE,
        "response_cache",
        set(),
    ),
}


def errors(repository: Path, *, config_name: str = "") -> list[Issue]:
    """List what would keep a server from starting, or worse."""
    question = Question(repository=repository, cores=2, config_name=config_name)
    return [one for one in lint(question).issues if one.severity is Severity.ERROR]


def line_text(issue: Issue) -> str:
    """Return the line of the file that an issue names."""
    return Path(issue.file).read_text().splitlines()[issue.line - 1]


@pytest.mark.parametrize("code", BREAKS)
def test_a_broken_product_has_an_error_at_its_line(
    repository: Path, edit: Edit, code: str
) -> None:
    """The rule, the file, the line, and only what follows from it besides."""
    edits, file, snippet, others = BREAKS[code]
    for name, old, new in edits:
        if old:
            edit(name, old, new)
        else:
            (repository / name).write_text(new)
    found = errors(repository)
    assert {issue.rule.code for issue in found} == {code} | others
    (issue,) = (one for one in found if one.rule.code == code)
    assert issue.file == str(repository / file)
    if not snippet:
        assert issue.line == 0
        return
    assert snippet in (repository / file).read_text().splitlines()[issue.line - 1]


def test_a_release_for_another_spec_is_found(repository: Path) -> None:
    """By the line of release.json that names the spec."""
    path = repository / RELEASE
    release = json.loads(path.read_text()) | {"spec_hash": "0" * 16}
    path.write_text(json.dumps(release, indent=2))
    (issue,) = errors(repository)
    assert issue.rule.code == "TG311"
    assert '"spec_hash"' in path.read_text().splitlines()[issue.line - 1]


def test_a_model_that_cannot_be_loaded_is_found(repository: Path) -> None:
    """Half a model.onnx fits neither configuration nor record nor release."""
    path = repository / "fraud_model/1/model.onnx"
    path.write_bytes(path.read_bytes()[:1000])
    found = errors(repository)
    assert {issue.rule.code for issue in found} == {"TG310", "TG312", "TG313"}
    (issue,) = (one for one in found if one.rule.code == "TG313")
    assert (issue.file, issue.line) == (str(path), 0)


def test_a_missing_plan_is_found_where_one_is_asked_for(repository: Path) -> None:
    """The named configuration runs a plan, which every machine builds itself."""
    assert errors(repository) == []
    (issue,) = errors(repository, config_name="tensorrt")
    assert issue.rule.code == "TG316"
    assert issue.file == str(repository / "fraud_model/1/model.plan")


@pytest.fixture
def canary(repository: Path) -> Path:
    """The copy, with a second model that answers a share of the customers."""
    shutil.copytree(repository / "fraud_model/1", repository / "fraud_model/2")
    release = read_release(repository, product="fraud")
    second = {
        name.replace("fraud_model/1/", "fraud_model/2/"): digest
        for name, digest in release.hashes.items()
        if name.startswith("fraud_model/1/")
    }
    challenger = Challenger(
        release="fraud-9",
        versions=release.versions | {"fraud_model": 2},
        spec_hash=release.spec_hash,
        mode="canary",
        percent=5.0,
        actor="test",
        reason="test",
        time="2026-01-01T00:00:00Z",
    )
    write_release(
        repository,
        msgspec.structs.replace(
            release, challenger=challenger, hashes=release.hashes | second
        ),
    )
    return repository


CHALLENGED = '{ name: "challenger_probabilities" data_type: TYPE_FP32 dims: [ 2 ]'


@pytest.mark.parametrize(
    ("old", "new", "file", "snippet"),
    [
        (CHALLENGED, CHALLENGED.replace("challenger_", "other_"), DECISION, "input ["),
        (CHALLENGED, CHALLENGED.replace("[ 2 ]", "[ 3 ]"), ENSEMBLE, "model_name"),
    ],
)
def test_a_canary_that_cannot_be_wired_is_found(
    canary: Path, edit: Edit, old: str, new: str, file: str, snippet: str
) -> None:
    """The merged configuration is followed too, not only what the files say."""
    assert errors(canary) == []
    edit(DECISION, old, new)
    (issue,) = errors(canary)
    assert issue.rule.code == "TG320"
    assert issue.file == str(canary / file)
    lines = (canary / file).read_text().splitlines()
    assert any(snippet in line for line in lines[issue.line - 2 : issue.line + 1])


def test_new_warnings_stop_no_server(repository: Path, edit: Edit) -> None:
    """Delay, threads and objective are told, and `serve` starts as it did."""
    edit(MODEL, "max_queue_delay_microseconds: 300", "max_queue_delay_microseconds: 1")
    edit(MODEL, 'string_value: "1"', 'string_value: "64"')
    (repository / "fraud/slo.yaml").write_text("latency_objective_ms: 0.001\n")
    question = Question(repository=repository, cores=2)
    codes = [issue.rule.code for issue in lint(question).issues]
    assert codes == ["TG204", "TG403", "TG205"]
    require_sound(RepositorySnapshot(repository), product="fraud")


def test_an_open_hop_is_found_and_cannot_be_released(
    repository: Path, edit: Edit
) -> None:
    """`check` names the key, and every way to serve refuses it with one line."""
    edit(SPEC, "    hop: 0\n  terminal", "    hop: auto\n  terminal")
    found = errors(repository)
    assert [one.rule.code for one in found] == ["TG310", "TG317"]
    (issue,) = (one for one in found if one.rule.code == "TG317")
    assert (issue.file, issue.where) == (
        str(repository / SPEC),
        "entities.customer.hop",
    )
    assert line_text(issue) == "    hop: auto"
    assert issue.problem == (
        "auto cannot be served: write hop: 0, or if an id has more than 1,024 events "
        "in its widest window set hop: 1s; `tollgate features build HISTORY OUT` "
        "prints which"
    )
    snapshot = RepositorySnapshot(repository)
    with pytest.raises(
        SpecError, match=r"entities\.customer\.hop: auto cannot be served"
    ):
        require_sound(snapshot, product="fraud")
    with pytest.raises(
        SpecError, match=r"entities\.customer\.hop: auto cannot be served"
    ):
        compose_next(
            snapshot, product="fraud", versions={}, actor="test", reason="test"
        )


@pytest.mark.parametrize(
    ("rate", "hop", "problem"),
    [
        ("33/d", "0", ""),  # 1,023 in 31 days
        (
            "40/d",
            "0",
            "is 1,240 events of an id of customer within 31d (widest window, delay and "
            "lateness); the store holds 1,024: set hop: 1s",
        ),
        (
            "1.5/h",
            "0",
            "is 1,116 events of an id of customer within 31d (widest window, delay and "
            "lateness); the store holds 1,024: set hop: 1s",
        ),
        ("1000/s", "1h", ""),  # tiles take any number
    ],
)
def test_a_rate_beyond_the_cap_is_a_warning(
    repository: Path, edit: Edit, rate: str, hop: str, problem: str
) -> None:
    """The windows of 30 days and the lateness of one day, times the rate."""
    lines = f"    hop: {hop}\n    rate: {rate}\n  terminal"
    edit(SPEC, "    hop: 0\n  terminal", lines)
    issues = lint(Question(repository=repository, cores=2)).issues
    found = [one for one in issues if one.rule.code == "TG323"]
    assert [one.problem for one in found] == ([problem] if problem else [])
    for issue in found:
        assert issue.severity is Severity.WARNING
        assert issue.file == str(repository / SPEC)
        assert issue.where == "entities.customer.rate"
        assert line_text(issue) == f"    rate: {rate}"


@pytest.mark.parametrize(
    ("old", "new", "where", "line"),
    [
        (
            "  terminal:\n    key: terminal_id\n    hop: 0\n",
            "  terminal: {key: terminal_id, hop: 2h}\n  other:\n    key: other_id\n",
            "entities.terminal.hop",
            "  terminal: {key: terminal_id, hop: 2h}",
        ),
        (
            "{name: terminal_nb_tx_7d, ",
            "{nth: 2, name: terminal_nb_tx_7d, ",
            "features.terminal_nb_tx_7d.nth",
            "  - {nth: 2, name: terminal_nb_tx_7d, ",
        ),
        ("lateness: 1d", "lateness: soon", "lateness", "lateness: soon"),
        (
            "    delay: 7d ",
            "    dely: 7d ",
            "entities.terminal",
            "  terminal:",
        ),
    ],
)
def test_an_error_in_features_has_the_line_of_its_key(
    repository: Path, edit: Edit, old: str, new: str, where: str, line: str
) -> None:
    """Keys of one name stand in several entities and features."""
    edit(SPEC, old, new)
    (issue,) = (one for one in errors(repository) if one.rule.code == "TG317")
    assert issue.where == where
    assert line_text(issue).startswith(line)


def test_every_file_that_cannot_be_read_is_named(repository: Path, edit: Edit) -> None:
    """Two steps of a product are two findings, each with its line."""
    for file in (MODEL, DECISION):
        edit(file, BATCH, "max_batch_sise: 32")
    found = errors(repository)
    assert [(one.rule.code, one.file) for one in found] == [
        ("TG001", str(repository / DECISION)),
        ("TG001", str(repository / MODEL)),
    ]
    for one in found:
        assert "sise" in Path(one.file).read_text().splitlines()[one.line - 1]


def test_a_products_objective_is_its_own(repository: Path) -> None:
    """Another model beside it may wait as long as it likes."""
    slow = repository / "slow"
    (slow / "1").mkdir(parents=True)
    (slow / "config.pbtxt").write_text(
        "dynamic_batching { max_queue_delay_microseconds: 900000 }"
    )
    question = Question(repository=repository, cores=2)
    assert {one.rule.code for one in lint(question).issues} == {"TG205"}
    told = Question(repository=repository, cores=2, objective_ms=50)
    assert {one.rule.code for one in lint(told).issues} == {"TG204", "TG205"}


def test_every_rule_for_products_has_its_case() -> None:
    """Those of products alone, and those that are graver in a product."""
    graver = {code for code, rule in RULES.items() if rule.in_product is not None}
    assert (
        BREAKS.keys() | {"TG311", "TG313", "TG316", "TG320", "TG323"} | RANKING
        == PRODUCT_ONLY | graver
    )


def test_another_product_of_the_repository_is_checked_too(
    repository: Path, edit: Edit
) -> None:
    """Unless one is named: then it alone."""
    (repository / "other/1").mkdir(parents=True)
    (repository / "other/release.json").write_text("{}")
    (repository / "other/config.pbtxt").write_text(
        (repository / ENSEMBLE).read_text().replace('"fraud"', '"other"')
    )
    assert {Path(issue.file).parent.name for issue in errors(repository)} == {"other"}
    question = Question(repository=repository, product="fraud", cores=2)
    assert {str(one.severity) for one in lint(question).issues} == {"advice"}
