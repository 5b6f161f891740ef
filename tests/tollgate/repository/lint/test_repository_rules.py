"""Each rule for any repository fires where it should, alone, and not beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from tollgate.repository.lint.linting import PRODUCT_ONLY, RULES, Issue, Question, lint

Grave = Callable[[Question], list[Issue]]
Write = Callable[[Mapping[str, str]], Path]
Edits = Sequence[tuple[str, str, str]]
Edited = Callable[[Edits, Sequence[str]], dict[str, str]]

WHOLE, PREPARE, MODEL = "whole/config.pbtxt", "prepare/config.pbtxt", "net/config.pbtxt"
PINNED = ('"net"\n      model_version: -1', '"net"\n      model_version: 2')
MAP_OUT = 'output_map { key: "out"'
SPARE = '{ name: "spare" data_type: TYPE_FP32 dims: [ 4 ] }'
SPARED = '{ key: "spare" value: "numbers" }\n'
OLDER = '"net"\n      model_version: 1'
SPECIFIC = "\nversion_policy { specific { versions: [ 2 ] } }\n"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
CACHE = "\nresponse_cache { enable: true }\n"
WARM_UP = '\nmodel_warmup [ { name: "one" batch_size: 1 } ]\n'
HISTOGRAM = """
model_metrics {
  metric_control: [
    {
      metric_identifier: { family: "nv_inference_first_response_histogram_ms" }
      histogram_options: { buckets: [ BUCKETS ] }
    }
  ]
}
"""


class Case(msgspec.Struct, frozen=True):
    """
    A repository that breaks a rule, or nearly.

    Attributes:
        code: Of the rule.
        file: The finding's, below the folder of models.
        line: A text that stands once in the file, from its line on; empty: no line.
        edits: File, text in it, text in its place; "" for the text appends.
        without: Files that are not there.
        question: Fields of the question.
    """

    code: str
    file: str
    line: str
    edits: tuple[tuple[str, str, str], ...] = ()
    without: tuple[str, ...] = ()
    question: Mapping[str, object] = {}


def broken(code: str, file: str, line: str, *edits: tuple[str, str, str]) -> Case:
    """Describe a case of edits alone."""
    return Case(code, file, line, edits=edits)


TIMEOUT = "default_queue_policy { default_timeout_microseconds: 1000 }"
BREAKS = {
    "misspelt field": broken(
        "TG001",
        PREPARE,
        "max_batch_sise",
        (PREPARE, "max_batch_size", "max_batch_sise"),
    ),
    "other name": broken("TG001", MODEL, '"nett"', (MODEL, '"net"', '"nett"')),
    "no version": Case(
        "TG002", "net", "", without=("net/1/model.onnx", "net/2/model.onnx")
    ),
    "no code": Case(
        "TG003",
        "prepare/1/model.py",
        "",
        edits=(("prepare/1/other.py", "", "pass"),),
        without=("prepare/1/model.py",),
    ),
    "no such step": broken("TG004", WHOLE, '"nit"', (WHOLE, '"net"', '"nit"')),
    "unmapped": broken(
        "TG101",
        WHOLE,
        '{\n      model_name: "net"',
        (WHOLE, '      input_map { key: "in" value: "numbers" }\n', ""),
    ),
    "no such tensor": broken(
        "TG102",
        WHOLE,
        '"spare"',
        (
            WHOLE,
            '{ key: "out"',
            '{ key: "spare" value: "s" }\n      output_map { key: "out"',
        ),
    ),
    "no such source": broken(
        "TG103",
        WHOLE,
        '"nobody"',
        (WHOLE, 'key: "in" value: "numbers"', 'key: "in" value: "nobody"'),
    ),
    "shape": broken(
        "TG104",
        WHOLE,
        'key: "in"',
        (
            MODEL,
            '"in" data_type: TYPE_FP32 dims: [ 4 ]',
            '"in" data_type: TYPE_FP32 dims: [ 5 ]',
        ),
    ),
    "type of the answer": broken(
        "TG104", WHOLE, '"answer" data_type', (WHOLE, "TYPE_FP32", "TYPE_FP64")
    ),
    "optional on one side": broken(
        "TG105",
        WHOLE,
        'key: "raw"',
        (WHOLE, "dims: [ 1 ]", "dims: [ 1 ] optional: true"),
    ),
    "written twice": broken(
        "TG106",
        WHOLE,
        'key: "spare"',
        (
            WHOLE,
            '{ key: "out"',
            SPARED + MAP_OUT,
        ),
        (MODEL, "output [", f"output [ {SPARE},"),
    ),
    "written over an input": broken(
        "TG106",
        WHOLE,
        'key: "spare"',
        (WHOLE, '{ key: "out"', SPARED.replace("numbers", "text") + MAP_OUT),
        (MODEL, "output [", f"output [ {SPARE},"),
    ),
    "unread": broken(
        "TG107",
        WHOLE,
        '"unread"',
        (
            WHOLE,
            "input [",
            'input [ { name: "also" data_type: TYPE_FP32 dims: [ 1 ] }, # "unread"\n',
        ),
    ),
    "unmade": broken(
        "TG108",
        WHOLE,
        '"more"',
        (
            WHOLE,
            "output [",
            'output [ { name: "more" data_type: TYPE_FP32 dims: [ 1 ] },\n',
        ),
    ),
    "smaller batches": broken(
        "TG109",
        WHOLE,
        "max_batch_size: 8",
        (MODEL, "max_batch_size: 8", "max_batch_size: 4"),
    ),
    "timeout": broken(
        "TG201", PREPARE, "default_timeout", (PREPARE, "{ }", f"{{\n {TIMEOUT} }}")
    ),
    "timeout of a priority": broken(
        "TG201",
        PREPARE,
        "allow_timeout_override",
        (
            PREPARE,
            "{ }",
            "{ priority_queue_policy { key: 2\n"
            "value { allow_timeout_override: true } } }",
        ),
    ),
    "bound": broken(
        "TG202",
        MODEL,
        "max_queue_size",
        (
            MODEL,
            "dynamic_batching {",
            "dynamic_batching {\n default_queue_policy { max_queue_size: 128 }\n",
        ),
    ),
    "priorities": broken(
        "TG202",
        MODEL,
        "priority_levels",
        (
            MODEL,
            "dynamic_batching {",
            "dynamic_batching {\n priority_levels: 2 default_priority_level: 1\n",
        ),
    ),
    "two delays": broken(
        "TG203",
        PREPARE,
        "max_queue_delay",
        (PREPARE, "{ }", "{ max_queue_delay_microseconds: 1000 }"),
    ),
    "long delay": Case(
        "TG204",
        MODEL,
        "21000",
        edits=((MODEL, "5000", "21000"),),
        question={"objective_ms": 50},
    ),
    "large batches": broken(
        "TG208",
        PREPARE,
        "preferred",
        (PREPARE, "{ }", "{\npreferred_batch_size: [ 4, 16 ] }"),
    ),
    "latest": broken(
        "TG301",
        MODEL,
        "latest",
        (WHOLE, *PINNED),
        (MODEL, "", "version_policy { latest { num_versions: 1 } }"),
    ),
    "left out": broken("TG301", MODEL, 'name: "net"', (WHOLE, *PINNED)),
    "no such version": broken(
        "TG302",
        WHOLE,
        "model_version: 7",
        (WHOLE, PINNED[0], '"net"\n      model_version: 7'),
    ),
    "version that is not kept": broken(
        "TG302",
        WHOLE,
        "model_version: 1",
        (WHOLE, PINNED[0], OLDER),
        (MODEL, "", SPECIFIC),
    ),
    "older than the latest": broken(
        "TG302", WHOLE, "model_version: 1", (WHOLE, PINNED[0], OLDER)
    ),
    "warm-up": broken("TG401", PREPARE, "model_warmup", (PREPARE, "", WARM_UP)),
    "cache on the ensemble": broken(
        "TG402", WHOLE, "response_cache", (WHOLE, "", CACHE)
    ),
    "cache on its Python step": broken(
        "TG402", PREPARE, "response_cache", (PREPARE, "", CACHE)
    ),
    "ensemble with warm-up": broken(
        "TG407", WHOLE, "model_warmup", (WHOLE, "", WARM_UP)
    ),
    "ensemble with instances": broken(
        "TG407", WHOLE, "instance_group", (WHOLE, "", "instance_group { count: 1 }")
    ),
    "cache of many answers": broken(
        "TG408", MODEL, "response_cache", (MODEL, "", DECOUPLED + CACHE)
    ),
    "threads": broken("TG403", MODEL, "intra_op", (MODEL, "count: 1", "count: 2")),
    "histogram": Case(
        "TG406",
        MODEL,
        "buckets",
        edits=((MODEL, "", HISTOGRAM.replace("BUCKETS", "100, 500")),),
        question={"objective_ms": 50},
    ),
}
# Codes that are advice, and what tells each from BASE.
ADVICE = {
    "open queue": broken("TG205", WHOLE, 'name: "whole"'),
    "pools without size": broken(
        "TG404",
        MODEL,
        "instance_group",
        (MODEL, 'key: "intra_op_thread_count"', 'key: "other"'),
        (MODEL, "count: 1", "count: 2"),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_rule_is_found_alone_at_its_line(
    write: Write, edited: Edited, grave: Grave, name: str
) -> None:
    """The rule, the file and the line, and nothing else that is grave."""
    case = BREAKS[name]
    files = edited(case.edits, case.without)
    folder = write(files)
    question = Question(repository=folder, cores=2)
    found = grave(msgspec.structs.replace(question, **case.question))
    assert [issue.rule.code for issue in found] == [case.code]
    (issue,) = found
    assert issue.file == str(folder / case.file)
    if not case.line:
        assert issue.line == 0
        return
    text = files[case.file]
    assert text.count(case.line) == 1
    assert issue.line == text.count("\n", 0, text.index(case.line)) + 1
    assert issue.problem
    assert "\n" not in issue.problem


@pytest.mark.parametrize("name", ADVICE)
def test_advice_is_given_at_its_line(write: Write, edited: Edited, name: str) -> None:
    """Advice is found too, and is nothing grave."""
    case = ADVICE[name]
    files = edited(case.edits, case.without)
    found = lint(Question(repository=write(files), cores=2)).issues
    (issue,) = (issue for issue in found if issue.rule.code == case.code)
    line = files[case.file].splitlines()[issue.line - 1]
    assert case.line in line
    assert {str(one.severity) for one in found} == {"advice"}


def test_every_rule_for_any_repository_has_its_case() -> None:
    """All but those of products, of start lines and of graphs, which have files."""
    tested = {case.code for case in [*BREAKS.values(), *ADVICE.values()]}
    elsewhere = {code for code in RULES if code.startswith("TG5")} | {"TG405"}
    assert tested == RULES.keys() - PRODUCT_ONLY - elsewhere
