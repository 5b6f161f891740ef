"""Rules TG1xx: check that the tensors of every ensemble connect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.repository.findings import Finding
from tollgate.repository.lint.lint_rule import DOCS, Rule, Severity
from tollgate.repository.lint.view import View
from tollgate.repository.wires import Ends, Wires

_ENSEMBLES = "tried on 2.51; " + DOCS + "user_guide/ensemble_models.html"
_UTILS = "tried on 2.51; ensemble_utils.cc of github.com/triton-inference-server/core"

RULES = (
    Rule(
        code="TG101",
        title="an input of a step is not mapped",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble: the step would run without it.",
        source=_UTILS,
        mend="Add an input_map, or make the input optional in the step.",
    ),
    Rule(
        code="TG102",
        title="a map names a tensor that the step does not have",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble.",
        source=_UTILS,
        mend="The key of a map is the step's own name of the tensor.",
    ),
    Rule(
        code="TG103",
        title="a step reads what nobody makes",
        severity=Severity.ERROR,
        why="The step would wait for ever; Triton refuses the ensemble.",
        source=_ENSEMBLES,
        mend="The value of an input_map is an input of the ensemble, or the value of "
        "an output_map of another step. In a product, of an earlier one.",
    ),
    Rule(
        code="TG104",
        title="the two ends of a wire differ in type or shape",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble, or with -1 the first request.",
        source=_UTILS,
        mend="Make data_type and dims agree.",
    ),
    Rule(
        code="TG105",
        title="an optional input leads to one that is not",
        severity=Severity.ERROR,
        why="Requests without it fail, although the ensemble says that they may.",
        source="measured here: docs/features.md, Fields",
        mend="Declare it optional in the step too, or in neither.",
    ),
    Rule(
        code="TG106",
        title="two steps write one tensor",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble. When the other one is an input of it, it "
        "loads, and it is undefined which of the two a later step reads.",
        source=_ENSEMBLES,
        mend="Give each output a name of its own in the output_map.",
    ),
    Rule(
        code="TG107",
        title="no step reads an input of the ensemble",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble: mostly a map was forgotten.",
        source=_ENSEMBLES,
        mend="Map it, or take it out.",
    ),
    Rule(
        code="TG108",
        title="no step makes an output of the ensemble",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble: the answer could never be complete.",
        source=_ENSEMBLES,
        mend="Map it in the output_map of the step that makes it, or take it out.",
    ),
    Rule(
        code="TG109",
        title="a step takes smaller batches than its ensemble",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble: larger requests would fail in the middle.",
        source=_UTILS,
        mend="Raise max_batch_size of the step, or lower that of the ensemble.",
    ),
)


def findings(view: View) -> Iterator[Finding]:
    """Follow the tensors of every ensemble that is not a product with its own check."""
    for model, config in view.ensembles():
        if model.name in view.products:
            continue
        yield from _batch_findings(view, config, file=model.file)
        wires = Wires(_ends(config, name=model.name))
        steps = config.ensemble_scheduling.step
        ends = {step.model_name: Ends() for step in steps}
        ends |= {
            step.name: _ends(own, name=step.name) for step, own in view.steps(config)
        }
        for code, where, problem, at in wires.follow(in_data_order(config), ends):
            yield Finding(
                code=code, file=model.file, where=where, problem=problem, at=at
            )


def _ends(config: ModelConfig, *, name: str) -> Ends:
    """Read a model's tensors; None for those that Triton is to complete."""
    declared = Ends.of(config, name=name)
    return Ends(inputs=declared.inputs or None, outputs=declared.outputs or None)


def _batch_findings(view: View, config: ModelConfig, *, file: str) -> Iterator[Finding]:
    for step, own in view.steps(config):
        if 0 < own.max_batch_size < config.max_batch_size:
            yield Finding(
                code="TG109",
                file=file,
                where="max_batch_size",
                problem=f"{config.max_batch_size}, but {step.name} takes batches of "
                f"{own.max_batch_size} only",
                at="max_batch_size",
            )


def in_data_order(config: ModelConfig) -> Sequence[Any]:
    """
    Put the steps of an ensemble in the order in which data flows.

    Triton does not require this order in the file. Steps that wait for a tensor that no
    step produces come last, in the order of the file.
    """
    waiting = list(config.ensemble_scheduling.step)
    made = {name for step in waiting for name in step.output_map.values()}
    read = {name for step in waiting for name in step.input_map.values()}
    available = {tensor.name for tensor in config.input} or read - made
    ordered: list[Any] = []
    while ready := [
        step for step in waiting if set(step.input_map.values()) <= available
    ]:
        ordered += ready
        waiting = [step for step in waiting if step not in ready]
        available |= {name for step in ready for name in step.output_map.values()}
    return [*ordered, *waiting]
