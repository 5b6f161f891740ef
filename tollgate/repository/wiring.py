"""Check that a product's tensors connect, end to end: names, types, shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tollgate import schema
from tollgate.features.definition import Field
from tollgate.repository.findings import Finding
from tollgate.repository.product import Product
from tollgate.repository.wires import Break, Ends, Tensor, Wires, tensors_of

# Types of a declared field on the wire; NaN and an empty text mean that a row has none.
FIELD_KINDS = {"number": "TYPE_FP64", "category": "TYPE_STRING"}


def wiring_findings(product: Product) -> list[Finding]:
    """
    Follow every tensor through the ensemble.

    Returns:
        One finding per mismatch, in the order in which data flows; all of them name the
        ensemble's file, because that is where the wires are.
    """
    file = str(product.config_path(product.name))
    tensors = {
        name: Ends.of(config, name=name) for name, config in product.steps.items()
    }
    wires = Wires(Ends.of(product.ensemble, name=product.name))
    breaks = [*wires.follow(product.ensemble.ensemble_scheduling.step, tensors)]
    breaks += _answer_breaks(wires.ensemble.outputs)
    return [
        Finding(code=code, file=file, where=where, problem=problem, at=at)
        for code, where, problem, at in breaks
    ]


def field_findings(
    product: Product, *, step: str, fields: Sequence[Field]
) -> list[Finding]:
    """
    Check that step and ensemble have an optional input for every declared field.

    Args:
        product: The configurations.
        step: The step that reads features.yaml.
        fields: The fields that features.yaml declares.
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
    wire = f"ensemble_scheduling.step[{step}]"
    missing: list[tuple[str, str, str, str]] = []
    for field in fields:
        names = {step: field.name, product.name: sources.get(field.name, field.name)}
        for model, name in names.items():
            found = _field_problem(inputs[model].get(name), FIELD_KINDS[field.type])
            missing.append((model, f"input {name}", f"input[{name}]", found))
        if field.name not in sources:
            found = f"input {field.name}, which features.yaml declares, is not mapped"
            missing.append((product.name, f"{step}: input_map", wire, found))
    return [
        Finding(
            code="TG314",
            file=str(product.config_path(model)),
            where=where,
            problem=found,
            at=at,
        )
        for model, where, at, found in missing
        if found
    ]


def _field_problem(tensor: Tensor | None, kind: str) -> str:
    """Compare an input with a declared field's requirement; empty if they agree."""
    wanted = f"features.yaml declares it: {kind} [1], optional"
    if tensor is None:
        return f"is missing: {wanted}"
    if (tensor.kind, tensor.dims) != (kind, (1,)):
        return f"{tensor} must be {kind} [1] by features.yaml"
    return "" if tensor.optional else f"must be optional: {wanted}"


def _answer_breaks(declared: dict[str, Tensor] | None) -> Iterator[Break]:
    """Compare the ensemble's outputs with those that clients expect."""
    outputs = declared or {}
    for name, tensor in outputs.items():
        where, at = f"output {name}", f"output[{name}]"
        expected = schema.ANSWER_TYPES.get(name)
        if expected is None:
            yield "TG120", where, "is not part of the answer that clients know", at
        elif (tensor.kind, tensor.dims) != (expected, (1,)):
            yield "TG120", where, f"{tensor} must be {expected} [1]", at
    for name in schema.ANSWER_TYPES.keys() - outputs.keys():
        yield (
            "TG120",
            f"output {name}",
            "is part of the answer and is missing",
            "output",
        )
