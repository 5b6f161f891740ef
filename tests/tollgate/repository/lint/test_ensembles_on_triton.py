"""A real Triton refuses the ensembles that the linter calls wrong, and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tollgate.errors import ServerError
from tollgate.repository.lint.lint_rule import Severity
from tollgate.repository.lint.linting import Question, lint
from tollgate.server.triton import control
from tollgate.server.triton.launcher import TritonServer

pytestmark = pytest.mark.slow

Edits = Sequence[tuple[str, str, str]]
Edited = Callable[[Edits, Sequence[str]], dict[str, str]]

WHOLE, PREPARE, MODEL = "whole/config.pbtxt", "prepare/config.pbtxt", "net/config.pbtxt"
SPARE = '{ name: "spare" data_type: TYPE_FP32 dims: [ 4 ] }'
LATER = '"net"\n      model_version: -1'
STEP = """
class TritonPythonModel:
    def execute(self, requests):
        return [None for request in requests]
"""

# name of the ensemble: (edits, code of the error or none)
ENSEMBLES: dict[str, tuple[Edits, str]] = {
    "sound": ((), ""),
    "unmapped": (((WHOLE, 'input_map { key: "in" value: "numbers" }', ""),), "TG101"),
    "strange": (((WHOLE, '{ key: "out"', '{ key: "none"'),), "TG102"),
    "sourceless": (((WHOLE, '"in" value: "numbers"', '"in" value: "x"'),), "TG103"),
    "misshapen": (((MODEL, "dims: [ 4 ]", "dims: [ 5 ]"),), "TG104"),
    "any_shape": (((MODEL, "dims: [ 4 ]", "dims: [ -1 ]"),), ""),
    "twice": (
        (
            (MODEL, "output [", f"output [ {SPARE},"),
            (
                WHOLE,
                '{ key: "out"',
                '{ key: "spare" value: "numbers" } output_map { key: "out"',
            ),
        ),
        "TG106",
    ),
    "unread": (((WHOLE, "input [", f"input [ {SPARE},"),), "TG107"),
    "unmade": (((WHOLE, "output [", f"output [ {SPARE},"),), "TG108"),
    "smaller": (((MODEL, "max_batch_size: 8", "max_batch_size: 4"),), "TG109"),
    "larger": (((MODEL, "max_batch_size: 8", "max_batch_size: 9"),), ""),
    "warmed": (((WHOLE, "", 'model_warmup { name: "one" batch_size: 1 }'),), "TG407"),
    "copied": (((WHOLE, "", "instance_group { count: 1 }"),), "TG407"),
    "eager": (((MODEL, "5000", "5000 preferred_batch_size: 9"),), "TG208"),
    "cached": (
        (
            (MODEL, "", "model_transaction_policy { decoupled: true }"),
            (MODEL, "", "response_cache { enable: true }"),
        ),
        "TG408",
    ),
    "gone": (((WHOLE, LATER, LATER.replace("-1", "7")),), "TG302"),
    "older": (((WHOLE, LATER, LATER.replace("-1", "1")),), "TG302"),
    "newest": (((WHOLE, LATER, LATER.replace("-1", "2")),), ""),
}


def write_ensemble(folder: Path, files: dict[str, str], *, name: str) -> None:
    """Write an ensemble and two steps of its own, all in Python."""
    for file, text in files.items():
        model, _, rest = file.partition("/")
        for old in ("whole", "prepare", "net"):
            text = text.replace(f'"{old}"', f'"{name}_{old}"')
        path = folder / f"{name}_{model}" / rest.replace("model.onnx", "model.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = text.replace('"onnxruntime"', '"python"')
        path.write_text(STEP if path.suffix == ".py" else text)


def test_triton_and_the_linter_agree(tmp_path: Path, edited: Edited) -> None:
    """What is found an error does not load; what is sound does, with -1 and all."""
    models = tmp_path / "models"
    for name, (edits, _) in ENSEMBLES.items():
        write_ensemble(models, edited(edits, ()), name=name)
    found: dict[str, set[str]] = {name: set() for name in ENSEMBLES}
    for issue in lint(Question(repository=models, cores=2)).issues:
        if issue.severity is Severity.ERROR:
            name = Path(issue.file).relative_to(models).parts[0].rpartition("_")[0]
            found[name].add(issue.rule.code)
    assert found == {
        name: {code} if code else set() for name, (_, code) in ENSEMBLES.items()
    } | {"strange": {"TG102", "TG108"}}
    loaded = set()
    with TritonServer(models, state=tmp_path / "state", store_url="") as server:
        for name in ENSEMBLES:
            try:
                control.load_model(server, f"{name}_whole", config=None)
            except ServerError:
                continue
            loaded.add(name)
    assert loaded == {name for name, codes in found.items() if not codes}
