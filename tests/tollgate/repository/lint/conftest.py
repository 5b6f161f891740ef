"""Small Triton repositories out of small texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tollgate.repository.lint.lint_rule import Severity
from tollgate.repository.lint.linting import Issue, Question, lint

# An ensemble of a Python step and a model; sound, with one delay and one instance.
BASE = {
    "whole/config.pbtxt": """\
name: "whole"
platform: "ensemble"
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "answer" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "prepare"
      model_version: -1
      input_map { key: "raw" value: "text" }
      output_map { key: "vector" value: "numbers" }
    },
    {
      model_name: "net"
      model_version: -1
      input_map { key: "in" value: "numbers" }
      output_map { key: "out" value: "answer" }
    }
  ]
}
""",
    "prepare/config.pbtxt": """\
name: "prepare"
backend: "python"
max_batch_size: 8
input [ { name: "raw" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "vector" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { }
""",
    "net/config.pbtxt": """\
name: "net"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "in" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching {
  max_queue_delay_microseconds: 5000
}
parameters { key: "intra_op_thread_count" value { string_value: "2" } }
""",
    "whole/1/.keep": "",
    "prepare/1/model.py": "",
    "net/1/model.onnx": "",
    "net/2/model.onnx": "",
}

Files = Mapping[str, str]
Edits = Sequence[tuple[str, str, str]]
Edited = Callable[[Edits, Sequence[str]], dict[str, str]]
Write = Callable[[Files], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write files below a folder of models, and return it."""

    def write_(files: Files) -> Path:
        folder = tmp_path / "models"
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return write_


@pytest.fixture
def grave() -> Callable[[Question], list[Issue]]:
    """Lint, and leave advice out."""
    return lambda question: [
        issue
        for issue in lint(question).issues
        if issue.severity is not Severity.ADVICE
    ]


@pytest.fixture
def edited() -> Edited:
    """Replace texts in the files of BASE, "" appends; leave some files out."""

    def edit(edits: Edits, without: Sequence[str] = ()) -> dict[str, str]:
        files = dict(BASE)
        for file, old, new in edits:
            text = files.get(file, "")
            assert old in text
            files[file] = text.replace(old, new, 1) if old else text + new
        return {file: text for file, text in files.items() if file not in without}

    return edit
