"""Derive the inputs of a product's requests and their types from its features.yaml."""

from __future__ import annotations

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import AMOUNT, EVENT_TIME

_KINDS = {AMOUNT: "FP64", EVENT_TIME: "INT64"}
FIELD_KINDS = {"number": "FP64", "category": "BYTES"}


def wire_inputs(spec: FeatureSpec) -> dict[str, str]:
    """Return the inputs that every request has, with their types."""
    return {name: _KINDS.get(name, "BYTES") for name in spec.columns}


def all_fields(spec: FeatureSpec) -> dict[str, str]:
    """Return every declared field, with its type."""
    return {field.name: FIELD_KINDS[field.type] for field in spec.fields}
