"""Write the four config.pbtxt of a product, and its steps' model.py."""

from __future__ import annotations

from collections.abc import Mapping

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import (
    AMOUNT,
    ANSWER_TYPES,
    EVENT_TIME,
    MAX_BATCH_ROWS,
    context_dtype,
)
from tollgate.templating import render

_TEMPLATES = "tollgate/product/templates"
_TYPES = {AMOUNT: "TYPE_FP64", EVENT_TIME: "TYPE_INT64"}
_FIELD_TYPES = {"number": "TYPE_FP64", "category": "TYPE_STRING"}


def step_names(product: str) -> tuple[str, str, str]:
    """Name the three steps of a product: features, model, decision."""
    return f"{product}_features", f"{product}_model", f"{product}_decision"


def config_texts(spec: FeatureSpec, *, wide: bool = False) -> dict[str, str]:
    """
    Write a product's configurations: path in the repository -> text.

    Args:
        spec: Its features.
        wide: True if the model takes the features as float64.
    """
    product = spec.product
    features, model, decision = step_names(product)
    values = {
        "wide": wide,
        "max_batch_size": MAX_BATCH_ROWS,
        "vector_size": len(spec.features),
        "context_size": context_dtype(spec.entity_names, spec.field_names).itemsize,
        "tensors": _request_tensors(spec),
        "answer_types": ANSWER_TYPES,
    }
    return {
        f"{product}/config.pbtxt": render(
            f"{_TEMPLATES}/ensemble.pbtxt.j2",
            {
                **values,
                "product": product,
                "features_step": features,
                "model_step": model,
                "decision_step": decision,
            },
        ),
        f"{features}/config.pbtxt": render(
            f"{_TEMPLATES}/features.pbtxt.j2",
            {**values, "step": features, "has_entities": bool(spec.entities)},
        ),
        f"{model}/config.pbtxt": render(
            f"{_TEMPLATES}/model.pbtxt.j2",
            {**values, "step": model, "type": "TYPE_FP64" if wide else "TYPE_FP32"},
        ),
        f"{decision}/config.pbtxt": render(
            f"{_TEMPLATES}/decision.pbtxt.j2", {**values, "step": decision}
        ),
    }


def step_texts(product: str) -> dict[str, str]:
    """Write the Python steps' model.py: path in the repository -> text."""
    features, _, decision = step_names(product)
    steps = {
        features: ("Validate rows and assemble features.", "FeatureStep"),
        decision: ("Turn probabilities into decisions with reasons.", "DecisionStep"),
    }
    return {
        f"{step}/1/model.py": render(
            f"{_TEMPLATES}/step.py.j2", {"step": step, "purpose": purpose, "base": base}
        )
        for step, (purpose, base) in steps.items()
    }


def all_texts(spec: FeatureSpec, *, wide: bool) -> Mapping[str, str]:
    """Write all files that follow from a product's features."""
    return {
        **config_texts(spec, wide=wide),
        **step_texts(spec.product),
        f"{spec.product}/1/.gitkeep": "",
    }


def _request_tensors(spec: FeatureSpec) -> list[dict[str, object]]:
    """List the tensors of a request; a field is optional."""
    required: list[dict[str, object]] = [
        {"name": name, "type": _TYPES.get(name, "TYPE_STRING"), "optional": False}
        for name in spec.columns
    ]
    fields: list[dict[str, object]] = [
        {"name": one.name, "type": _FIELD_TYPES[one.type], "optional": True}
        for one in spec.fields
    ]
    return required + fields
