"""What only resembles a broken rule is let be, one case for each rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tollgate.repository.lint.linting import PRODUCT_ONLY, RULES, Issue, Question, lint

Grave = Callable[[Question], list[Issue]]
Write = Callable[[Mapping[str, str]], Path]
Edits = Sequence[tuple[str, str, str]]
Edited = Callable[[Edits, Sequence[str]], dict[str, str]]

WHOLE, PREPARE, MODEL = "whole/config.pbtxt", "prepare/config.pbtxt", "net/config.pbtxt"
PINNED = ('"net"\n      model_version: -1', '"net"\n      model_version: 2')
SPECIFIC = "\nversion_policy { specific { versions: [ 2 ] } }\n"
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


NEARLY = {
    "TG001": [(MODEL, "", "# a comment with { and a # in it\n")],
    "TG002": [("net/3/.keep", "", "")],
    "TG003": [
        (PREPARE, "", 'default_model_filename: "step.py"'),
        ("prepare/1/step.py", "", ""),
    ],
    "TG004": [("notes/readme.txt", "", "a folder that is no model")],
    "TG101": [
        (MODEL, "input [", 'input [ { name: "x" dims: [ 1 ] optional: true },'),
        (MODEL, "optional: true", "optional: true data_type: TYPE_FP32"),
    ],
    "TG102": [(PREPARE, "output [ { ", 'output [ { name: "b" dims: [ 1 ] }, { ')],
    "TG104": [(MODEL, "dims: [ 4 ]", "dims: [ -1 ]")],
    "TG105": [
        (WHOLE, "dims: [ 1 ]", "dims: [ 1 ] optional: true"),
        (PREPARE, "dims: [ 1 ]", "dims: [ 1 ] optional: true"),
    ],
    "TG109": [(MODEL, "max_batch_size: 8", "max_batch_size: 16")],
    "TG201": [(PREPARE, "{ }", "{ default_queue_policy { } }")],
    "TG202": [(PREPARE, "{ }", "{ preferred_batch_size: [ 8 ] }")],
    "TG203": [(PREPARE, "{ }", "{ max_queue_delay_microseconds: 500 }")],
    "TG204": [(MODEL, "5000", "20000")],
    "TG208": [(PREPARE, "{ }", "{ preferred_batch_size: [ 4, 8 ] }")],
    "TG301": [(WHOLE, *PINNED), (MODEL, "", SPECIFIC)],
    "TG302": [(WHOLE, *PINNED), (MODEL, "", SPECIFIC.replace("2 ]", "1, 2 ]"))],
    "TG401": [(MODEL, "", WARM_UP)],
    "TG402": [(MODEL, "", CACHE)],
    "TG403": [(MODEL, "count: 1", "count: 2"), (MODEL, 'value: "2"', 'value: "1"')],
    "TG404": [(MODEL, 'key: "intra_op_thread_count"', 'key: "other"')],
    "TG407": [(MODEL, "", WARM_UP), (PREPARE, "", "instance_group { count: 2 }")],
    "TG408": [(PREPARE, "", "model_transaction_policy { decoupled: true }")],
    "TG406": [(MODEL, "", HISTOGRAM.replace("BUCKETS", "10, 50, 100"))],
}


@pytest.mark.parametrize("code", NEARLY)
def test_what_only_resembles_it_is_let_be(
    write: Write, edited: Edited, code: str
) -> None:
    """The same field with a value that does no harm."""
    folder = write(edited(NEARLY[code], ()))
    found = lint(Question(repository=folder, cores=2, objective_ms=50)).issues
    assert [issue.rule.code for issue in found] == ["TG205"]


def test_the_base_is_sound(write: Write, edited: Edited) -> None:
    """Nothing but the advice on its open queue, at any objective."""
    for objective_ms in (None, 20.0, 50.0):
        question = Question(
            repository=write(edited((), ())), cores=2, objective_ms=objective_ms
        )
        found = lint(question).issues
        assert [issue.rule.code for issue in found] == ["TG205"]


def test_a_model_without_a_batcher_has_no_queue_to_bound(
    write: Write, edited: Edited
) -> None:
    """No advice then."""
    files = edited((), ())
    bare = files | {
        PREPARE: files[PREPARE].replace("dynamic_batching { }", ""),
        MODEL: files[MODEL].partition("dynamic_batching")[0],
    }
    assert lint(Question(repository=write(bare), cores=2)).issues == []


def test_steps_may_stand_in_any_order(
    write: Write, edited: Edited, grave: Grave
) -> None:
    """Triton goes by the tensors, not by the file."""
    files = edited((), ())
    text = files[WHOLE]
    first, second = text.index("    {\n"), text.rindex("    {\n")
    end = text.rindex("  ]\n}")
    steps = text[first:second].rstrip().rstrip(","), text[second:end].rstrip()
    turned = text[:first] + steps[1] + ",\n" + steps[0] + "\n" + text[end:]
    folder = write(files | {WHOLE: turned})
    assert turned.index('"net"') < turned.index('"prepare"')
    assert grave(Question(repository=folder, cores=2)) == []


def test_every_rule_for_any_repository_has_its_case_here_too() -> None:
    """What is missing the base has: wires that all connect, and an open queue."""
    elsewhere = {code for code in RULES if code.startswith("TG5")} | {"TG405"}
    in_the_base = {"TG103", "TG106", "TG107", "TG108", "TG205"}
    assert NEARLY.keys() == RULES.keys() - PRODUCT_ONLY - elsewhere - in_the_base
