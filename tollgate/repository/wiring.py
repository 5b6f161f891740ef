"""
Do the tensors of an ensemble connect: names, types, shapes, from caller to caller?

Triton finds such mistakes too, but at load, one at a time, and not all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from tollgate import schema
from tollgate.features.definition import Field
from tollgate.repository.findings import Finding
from tollgate.repository.product import Product

# How a declared field travels; NaN and an empty text say that a row has none.
FIELD_KINDS = {"number": "TYPE_FP64", "category": "TYPE_STRING"}


class Tensor(msgspec.Struct, frozen=True):
    """
    A tensor somewhere on its way.

    Attributes:
        kind: Triton's name of its type, for example TYPE_FP32.
        dims: Shape of one row; -1 is any length.
        optional: Whether a caller may leave it out.
        origin: Who declares it, in words.
    """

    kind: str
    dims: tuple[int, ...]
    optional: bool
    origin: str

    def agrees(self, other: Tensor) -> bool:
        """Tell whether a value of this tensor always fits the other one."""
        return (
            self.kind == other.kind
            and len(self.dims) == len(other.dims)
            and all(
                mine == theirs or -1 in (mine, theirs)
                for mine, theirs in zip(self.dims, other.dims, strict=True)
            )
        )

    def __str__(self) -> str:
        """Print type, shape and origin."""
        return f"{self.kind} {list(self.dims)} ({self.origin})"


def tensors_of(declared: Sequence[Any], *, origin: str) -> dict[str, Tensor]:
    """Read the `input` or the `output` list of a configuration, by name."""
    return {
        entry.name: Tensor(
            kind=DataType.Name(entry.data_type),
            dims=tuple(entry.dims),
            optional=bool(getattr(entry, "optional", False)),
            origin=origin,
        )
        for entry in declared
    }


def wiring_findings(product: Product) -> list[Finding]:
    """
    Follow every tensor through the ensemble.

    Returns:
        A finding per break, in the order in which data flows; all of them name the
        ensemble's file, because that is where the wires are.
    """
    file = str(product.config_path(product.name))
    return [
        Finding(file=file, where=where, problem=problem)
        for where, problem in _breaks(product)
    ]


def _breaks(product: Product) -> Iterator[tuple[str, str]]:
    """Yield tensor and problem, from the ensemble's inputs to its outputs."""
    ensemble = product.ensemble
    inputs = tensors_of(ensemble.input, origin="ensemble input")
    available = dict(inputs)
    used: set[str] = set()
    for step in ensemble.ensemble_scheduling.step:
        config = product.steps[step.model_name]
        yield from _input_breaks(step, config, available=available)
        yield from _output_breaks(step, config, available=available)
        used |= set(step.input_map.values())
    for name in inputs.keys() - used:
        yield f"input {name}", "no step reads it"
    produced = {name: one for name, one in available.items() if name not in inputs}
    yield from _answer_breaks(ensemble, produced=produced)


def _input_breaks(
    step: Any, config: ModelConfig, *, available: dict[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """Compare what a step reads with what is there before it runs."""
    where = f"{step.model_name}: input_map"
    declared = tensors_of(config.input, origin=f"input of {step.model_name}")
    for name, tensor in declared.items():
        if name not in step.input_map and not tensor.optional:
            yield where, f"input {name} of {step.model_name} is not mapped"
    for name, source in sorted(step.input_map.items()):
        if name not in declared:
            yield f"{where} {name}", f"{step.model_name} has no such input"
        elif source not in available:
            problem = "is neither an ensemble input nor an output of an earlier step"
            yield f"{where} {name}", f"{source} {problem}"
        else:
            yield from _mismatch(f"{where} {name}", available[source], declared[name])


def _mismatch(where: str, given: Tensor, taken: Tensor) -> Iterator[tuple[str, str]]:
    """Compare the two ends of one wire."""
    if not given.agrees(taken):
        yield where, f"{given} does not fit {taken}"
    elif given.optional != taken.optional:
        first, second = (given, taken) if given.optional else (taken, given)
        problem = f"optional as {first.origin} but not as {second.origin}; both must be"
        yield where, problem


def _output_breaks(
    step: Any, config: ModelConfig, *, available: dict[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """Add what a step writes to what is there; no tensor may be written twice."""
    where = f"{step.model_name}: output_map"
    declared = tensors_of(config.output, origin=f"output of {step.model_name}")
    for name, target in sorted(step.output_map.items()):
        if name not in declared:
            yield f"{where} {name}", f"{step.model_name} has no such output"
        elif target in available:
            problem = f"{target} is already there: {available[target].origin}"
            yield f"{where} {name}", problem
        else:
            available[target] = declared[name]


def field_findings(
    product: Product, *, step: str, fields: Sequence[Field]
) -> list[Finding]:
    """
    Demand an optional input for every declared field, of the step and the ensemble.

    Args:
        product: The configurations.
        step: The one that reads features.yaml.
        fields: What features.yaml declares.
    """
    ensemble, config = product.ensemble, product.steps[step]
    sources = next(
        dict(one.input_map)
        for one in ensemble.ensemble_scheduling.step
        if one.model_name == step
    )
    inputs = {
        product.name: tensors_of(ensemble.input, origin="config.pbtxt"),
        step: tensors_of(config.input, origin="config.pbtxt"),
    }
    findings = []
    for field in fields:
        names = {step: field.name, product.name: sources.get(field.name, field.name)}
        for model, name in names.items():
            if problem := _field_problem(
                inputs[model].get(name), FIELD_KINDS[field.type]
            ):
                file = str(product.config_path(model))
                where = f"input {name}"
                findings.append(Finding(file=file, where=where, problem=problem))
        if field.name not in sources:
            file = str(product.config_path(product.name))
            problem = f"input {field.name}, which features.yaml declares, is not mapped"
            where = f"{step}: input_map"
            findings.append(Finding(file=file, where=where, problem=problem))
    return findings


def _field_problem(tensor: Tensor | None, kind: str) -> str:
    """Compare an input with what a declared field needs; empty when they agree."""
    wanted = f"features.yaml declares it: {kind} [1], optional"
    if tensor is None:
        return f"is missing: {wanted}"
    if (tensor.kind, tensor.dims) != (kind, (1,)):
        return f"{tensor} must be {kind} [1] by features.yaml"
    return "" if tensor.optional else f"must be optional: {wanted}"


def _answer_breaks(
    ensemble: ModelConfig, *, produced: dict[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """Compare the ensemble's outputs with what its steps made and clients expect."""
    declared = tensors_of(ensemble.output, origin="ensemble output")
    for name, tensor in declared.items():
        expected = schema.ANSWER_TYPES.get(name)
        if expected is None:
            yield f"output {name}", "is not part of the answer that clients know"
        elif (tensor.kind, tensor.dims) != (expected, (1,)):
            yield f"output {name}", f"{tensor} must be {expected} [1]"
        if name not in produced:
            yield f"output {name}", "no step produces it"
        elif not produced[name].agrees(tensor):
            yield f"output {name}", f"{produced[name]} does not fit {tensor}"
    for name in schema.ANSWER_TYPES.keys() - declared.keys():
        yield f"output {name}", "is part of the answer and is missing"
