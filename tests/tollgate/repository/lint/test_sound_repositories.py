"""No false alarm: repositories as Triton's documentation shows them are sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tollgate.repository.lint.linting import Issue, Question, lint
from tollgate.repository.releases.release_file import product_names

Grave = Callable[[Question], list[Issue]]
Write = Callable[[Mapping[str, str]], Path]

CHECKOUT = Path(__file__).resolve().parents[4]

# Two steps, the first in C++; the second has no configuration, its backend makes one.
IMAGES = {
    "images/config.pbtxt": """
platform: "ensemble"
max_batch_size: 64
input [ { name: "FILE" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "CLASSES" data_type: TYPE_FP32 dims: [ 1000 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "decode"
      model_version: -1
      input_map { key: "BYTES", value: "FILE" }
      output_map { key: "PIXELS", value: "image" }
    },
    {
      model_name: "resnet"
      model_version: -1
      input_map { key: "input", value: "image" }
      output_map { key: "output", value: "CLASSES" }
    }
  ]
}
""",
    "images/1/.gitkeep": "",
    "decode/config.pbtxt": """
name: "decode"
backend: "dali"
max_batch_size: 256
input [ { name: "BYTES" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "PIXELS" data_type: TYPE_FP32 dims: [ 224, 224, 3 ] } ]
parameters: [ { key: "num_threads" value: { string_value: "12" } } ]
""",
    "decode/1/model.dali": "",
    "resnet/1/model.onnx": "",
}
# Sums and differences in Python.
ADD_SUB = {
    "add_sub/config.pbtxt": """
name: "add_sub"
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
input [ { name: "INPUT1" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [{ kind: KIND_CPU }]
""",
    "add_sub/1/model.py": "",
}
# An image classifier, by platform, with labels and a reshaped answer.
DENSENET = {
    "densenet/config.pbtxt": """
name: "densenet"
platform: "onnxruntime_onnx"
max_batch_size : 0
input {
  name: "pixels" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ]
  reshape { shape: [ 1, 3, 224, 224 ] }
}
output {
  name: "scores" data_type: TYPE_FP32 dims: [ 1000 ]
  reshape { shape: [ 1, 1000, 1, 1 ] } label_filename: "labels.txt"
}
""",
    "densenet/1/model.onnx": "",
    "densenet/labels.txt": "",
}
SEQUENCE = {
    "counter/config.pbtxt": """
name: "counter"
platform: "onnxruntime_onnx"
max_batch_size: 8
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  oldest { max_candidate_sequences: 64 max_queue_delay_microseconds: 10000 }
  control_input [
    { name: "START" control [
      { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "ID" control [
      { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
""",
    "counter/1/model.onnx": "",
}
DECOUPLED = {
    "repeat/config.pbtxt": """
name: "repeat"
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: True }
input [
  { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] }
]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
""",
    "repeat/1/model.py": "",
}
INSTANCES = {
    "spread/config.pbtxt": """
backend: "onnxruntime"
max_batch_size: 16
instance_group [
  { count: 1 kind: KIND_GPU gpus: [ 0 ] },
  { count: 2 kind: KIND_GPU gpus: [ 1, 2 ] },
  { count: 2 kind: KIND_CPU }
]
optimization { execution_accelerators {
  gpu_execution_accelerator : [ { name : "tensorrt" } ]
} }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
""",
    "spread/1/model.onnx": "",
}
WARM_UP = {
    "warm/config.pbtxt": """
platform: "onnxruntime_onnx"
max_batch_size: 4
version_policy: { all { } }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
model_warmup [
  { name: "random" batch_size: 4
    inputs: { key: "x" value: {
      data_type: TYPE_FP32 dims: [ 2 ] random_data: true } } }
]
response_cache { enable: true }
""",
    "warm/3/model.onnx": "",
    "warm/1/model.onnx": "",
}
# The ensemble batches and one of its steps does not: its shape has the rows in it.
MIXED = {
    "mixed/config.pbtxt": """
platform: "ensemble"
max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "B" data_type: TYPE_FP32 dims: [ 3 ] } ]
ensemble_scheduling { step [ {
  model_name: "whole_batches" model_version: -1
  input_map { key: "IN" value: "A" } output_map { key: "OUT" value: "B" }
} ] }
""",
    "mixed/1/.gitkeep": "",
    "whole_batches/config.pbtxt": """
backend: "python"
max_batch_size: 0
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
""",
    "whole_batches/1/model.py": "",
}
# An ensemble that leaves its own tensors to be completed, out of order, with a branch.
UNKNOWN_TYPE = {
    "untold/config.pbtxt": """
ensemble_scheduling { step [
  { model_name: "last" model_version: -1
    input_map { key: "X" value: "left" } input_map { key: "Y" value: "right" }
    output_map { key: "Z" value: "answer" } },
  { model_name: "first" model_version: -1
    input_map { key: "X" value: "question" }
    output_map { key: "L" value: "left" } output_map { key: "R" value: "right" } }
] }
""",
    "untold/1/.gitkeep": "",
    "first/1/model.plan": "",
    "last/1/model.pt": "",
}
EXAMPLES = {
    "images": IMAGES,
    "add_sub": ADD_SUB,
    "densenet": DENSENET,
    "sequence": SEQUENCE,
    "decoupled": DECOUPLED,
    "instances": INSTANCES,
    "warm-up": WARM_UP,
    "mixed": MIXED,
    "untold": UNKNOWN_TYPE,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_documented_example_is_sound(write: Write, grave: Grave, name: str) -> None:
    """Neither error nor warning, whatever the objective and the server's cores."""
    folder = write(EXAMPLES[name])
    for cores, objective_ms in ((1, None), (2, 50.0), (64, 1.0)):
        question = Question(repository=folder, cores=cores, objective_ms=objective_ms)
        assert grave(question) == []


def test_all_examples_are_sound_in_one_repository(write: Write, grave: Grave) -> None:
    """Side by side, as servers have them."""
    files = {name: text for one in EXAMPLES.values() for name, text in one.items()}
    report = lint(Question(repository=write(files), cores=2))
    assert len(report.models) == 14
    assert report.products == ()
    assert {str(issue.severity) for issue in report.issues} == {"advice"}


@pytest.mark.parametrize("config_name", ["", "gpu"])
@pytest.mark.parametrize("release", ["", "26.07"])
def test_the_committed_repository_is_sound(config_name: str, release: str) -> None:
    """One piece of advice for each product: who bounds its queues."""
    question = Question(
        repository=CHECKOUT / "model_repository",
        config_name=config_name,
        release=release,
        cores=2,
    )
    report = lint(question)
    assert report.products == tuple(product_names(question.repository))
    codes = [issue.rule.code for issue in report.issues]
    assert codes == ["TG205"] * len(report.products)


def test_a_repository_that_is_none_is_refused(write: Write, tmp_path: Path) -> None:
    """No folder, or no model in it: silence would look like soundness."""
    from tollgate.errors import InputError

    for folder in (tmp_path / "none", write({"readme/text.txt": ""})):
        with pytest.raises(InputError, match=r"no such model repository|has no model"):
            lint(Question(repository=folder))
    named = Question(repository=write(ADD_SUB), config_name="gpu")
    with pytest.raises(InputError, match=r"no model has configs/gpu\.pbtxt"):
        lint(named)
    with pytest.raises(InputError, match="is not the name of a file"):
        lint(Question(repository=write(ADD_SUB), config_name="../gpu"))
