"""Every tensor that does not connect is named, with both its ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ENSEMBLE = "fraud/config.pbtxt"
FEATURES = "fraud_features/config.pbtxt"
MODEL = "fraud_model/config.pbtxt"
DECISION = "fraud_decision/config.pbtxt"

Edit = Callable[[str, str, str], None]
Lines = Callable[[], list[str]]


# name: (file, text, text instead, file of the finding, start of "where: problem")
BREAKS = {
    "input_of_no_step": (
        ENSEMBLE,
        '{ key: "probabilities" value: "probabilities" }\n      input_map { key: "f',
        '{ key: "chances" value: "probabilities" }\n      input_map { key: "f',
        ENSEMBLE,
        "fraud_decision: input_map: input probabilities of fraud_decision is not",
    ),
    "source_that_nobody_makes": (
        ENSEMBLE,
        'input_map  { key: "features"      value: "features" }',
        'input_map  { key: "features"      value: "vector" }',
        ENSEMBLE,
        "fraud_model: input_map features: vector is neither an ensemble input nor",
    ),
    "output_that_the_step_lacks": (
        ENSEMBLE,
        'output_map { key: "score"        value: "score" }',
        'output_map { key: "points"       value: "score" }',
        ENSEMBLE,
        "fraud_decision: output_map points: fraud_decision has no such output",
    ),
    "tensor_written_twice": (
        ENSEMBLE,
        'output_map { key: "error"        value: "error" }',
        'output_map { key: "error"        value: "context" }',
        ENSEMBLE,
        "fraud_decision: output_map error: context is already there: output of "
        "fraud_features",
    ),
    "type": (
        FEATURES,
        '"amount"         data_type: TYPE_FP64',
        '"amount"         data_type: TYPE_FP32',
        ENSEMBLE,
        "fraud_features: input_map amount: TYPE_FP64 [1] (ensemble input) does not "
        "fit TYPE_FP32 [1] (input of fraud_features)",
    ),
    "shape": (
        DECISION,
        "TYPE_UINT8 dims: [ 966 ]",
        "TYPE_UINT8 dims: [ 600 ]",
        ENSEMBLE,
        "fraud_decision: input_map context: TYPE_UINT8 [966] (output of fraud_features)"
        " does not fit TYPE_UINT8 [600] (input of fraud_decision)",
    ),
    "optional_on_one_side": (
        ENSEMBLE,
        '"terminal_id"    data_type: TYPE_STRING dims: [ 1 ] }',
        '"terminal_id"    data_type: TYPE_STRING dims: [ 1 ] optional: true }',
        ENSEMBLE,
        "fraud_features: input_map terminal_id: optional as ensemble input but not as "
        "input of fraud_features",
    ),
    "input_that_nobody_reads": (
        ENSEMBLE,
        "input [\n",
        'input [\n  { name: "channel" data_type: TYPE_STRING dims: [ 1 ] },\n',
        ENSEMBLE,
        "input channel: no step reads it",
    ),
    "answer_of_another_type": (
        ENSEMBLE,
        '"degraded"     data_type: TYPE_UINT32',
        '"degraded"     data_type: TYPE_INT32',
        ENSEMBLE,
        "output degraded: TYPE_INT32 [1] (ensemble output) must be TYPE_UINT32 [1]",
    ),
    "answer_that_the_step_makes_otherwise": (
        DECISION,
        '"score"        data_type: TYPE_FP32',
        '"score"        data_type: TYPE_FP64',
        ENSEMBLE,
        "output score: TYPE_FP64 [1] (output of fraud_decision) does not fit TYPE_FP32",
    ),
    "answer_that_nobody_makes": (
        ENSEMBLE,
        'output_map { key: "release"      value: "release" }',
        "",
        ENSEMBLE,
        "output release: no step produces it",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_cut_wire_is_named(
    repository: Path, lines: Lines, edit: Edit, name: str
) -> None:
    """Each broken wire gives a one-line finding with its file and tensor."""
    file, old, new, found_in, start = BREAKS[name]
    edit(file, old, new)
    found = lines()
    assert any(line.startswith(f"{repository / found_in}: {start}") for line in found)
    assert all("\n" not in line for line in found)
