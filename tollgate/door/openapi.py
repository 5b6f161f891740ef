"""Describe the door's routes as an OpenAPI 3.1 document, with examples to send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tollgate import __version__
from tollgate.door.answers import ListAnswer, RefusedList, RefusedRow, RowAnswer
from tollgate.door.inference import MOST_DEADLINE_US, InferenceResponse, Tensor
from tollgate.door.products import DoorProduct
from tollgate.door.refusal import JSON, PROBLEM_JSON, RowError
from tollgate.schema import (
    AMOUNT,
    EVENT_TIME,
    EXCLUDE,
    LIST_SIZE,
    MAX_EXCLUDED,
    MAX_ID_BYTES,
    MAX_LIST_SIZE,
    REQUEST_ID,
    TRANSACTION_ID,
)

if TYPE_CHECKING:
    from tollgate.door.application import Limits

Json = dict[str, Any]

_TEXT = {"type": "string"}
_SCHEMAS = "#/components/schemas/{name}"
_EXAMPLE_TIME_US = 1_760_000_000_000_000
_STATUSES = {
    "400": "The body, a header or a parameter is wrong.",
    "401": "The API key is missing or not valid.",
    "404": "No such product.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not application/json.",
    "422": "Every row is wrong, or the Idempotency-Key is not the row's id.",
    "429": "Too many rows of this caller are in flight.",
    "503": "Too many rows are in flight.",
}
_HEADERS = (
    ("x-request-timeout-ms", "Milliseconds in which to answer.", {"type": "number"}),
    ("traceparent", "W3C trace context.", {"type": "string"}),
)


def openapi_document(products: Sequence[DoorProduct], *, limits: Limits) -> Json:
    """Write the document for the products that are served."""
    paths: Json = {
        "/v2": _get("Name and version of the door.", secured=False),
        "/v2/health/live": _get("200 while the process runs.", secured=False),
        "/v2/health/ready": _get("200 while rows are answered.", secured=False),
        "/openapi.json": _get("This document.", secured=False),
    }
    if products[0].ranking is None:
        paths["/decide"] = {"post": _rows(products[0], limits)}
    for product in products:
        name = product.name
        if product.ranking is not None:
            paths[f"/rank/{name}"] = {"post": _rows(product, limits)}
            paths[f"/v2/models/{name}/ready"] = _get(f"200 if a server serves {name}.")
            continue
        paths[f"/decide/{name}"] = {"post": _rows(product, limits)}
        paths[f"/v2/models/{name}"] = _get(f"Inputs and outputs of {name}.")
        paths[f"/v2/models/{name}/ready"] = _get(f"200 if a server serves {name}.")
        paths[f"/v2/models/{name}/infer"] = {"post": _infer(product)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tollgate's door",
            "version": __version__,
            "description": "Decisions of Tollgate over HTTP and JSON.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(products),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def example_row(product: DoorProduct) -> Json:
    """Return a row that the product accepts."""
    return {name: _example(name, kind) for name, kind in product.inputs.items()}


def example_inference(product: DoorProduct) -> Json:
    """Return a request of KServe's protocol that the product accepts."""
    return {
        "id": "call-1",
        "inputs": [
            {
                "name": name,
                "datatype": kind,
                "shape": [1, 1],
                "data": [_example(name, kind)],
            }
            for name, kind in product.inputs.items()
        ],
    }


def _example(name: str, kind: str) -> object:
    if name == EVENT_TIME:
        return _EXAMPLE_TIME_US
    if name == AMOUNT:
        return 12.34
    if name in (TRANSACTION_ID, REQUEST_ID):
        return f"{name[0]}-1"
    return {"BYTES": f"{name.removesuffix('_id')}-1", "FP64": 1.0, "INT64": 1}[kind]


def _schemas(products: Sequence[DoorProduct]) -> Json:
    structs = [RowAnswer, RefusedRow, RowError, Tensor, InferenceResponse]
    if any(one.ranking is not None for one in products):
        structs += [ListAnswer, RefusedList]
    _, found = msgspec.json.schema_components(structs, ref_template=_SCHEMAS)
    for product in products:
        found[f"Row_{product.name}"] = row_schema(product)
    found["Problem"] = {
        "type": "object",
        "description": "Problem details, RFC 9457.",
        "required": ["status", "title", "detail"],
        "properties": {
            "status": {"type": "integer"},
            "title": {"type": "string"},
            "detail": {"type": "string"},
            "errors": {"type": "array", "items": _ref("RowError")},
        },
    }
    found["InferenceError"] = {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}},
    }
    found["InferenceRequest"] = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {
                "type": "object",
                "properties": {
                    "dry_run": {"type": "boolean"},
                    "deadline_us": {
                        "type": "integer",
                        "exclusiveMinimum": 0,
                        "maximum": MOST_DEADLINE_US,
                    },
                },
                "additionalProperties": False,
            },
            "inputs": {"type": "array", "items": _ref("Tensor")},
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}},
                },
            },
        },
    }
    return found


def row_schema(product: DoorProduct) -> Json:
    """Return the JSON schema of a product's row."""
    properties = {name: _value(name, kind) for name, kind in product.inputs.items()}
    for name, kind in product.fields.items():
        properties[name] = {"type": ["string" if kind == "BYTES" else "number", "null"]}
    if product.ranking is not None:
        item: Json = {"type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES}
        properties[EXCLUDE] = {
            "description": "Ids of items that the list must not have.",
            "type": ["array", "null"],
            "items": item,
            "maxItems": MAX_EXCLUDED,
        }
        properties[LIST_SIZE] = {
            "description": f"Number of items; {product.ranking.items} without it.",
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": MAX_LIST_SIZE,
        }
    return {
        "type": "object",
        "description": f"A row of {product.name}.",
        "required": list(product.inputs),
        "properties": properties,
        "additionalProperties": False,
    }


def _value(name: str, kind: str) -> Json:
    if name == EVENT_TIME:
        return {
            "description": "µs since 1970, UTC; or RFC 3339 with a time zone.",
            "type": ["integer", "string"],
        }
    if kind == "BYTES":
        return {"type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES}
    return {"type": "number" if kind == "FP64" else "integer"}


def _ref(name: str) -> Json:
    return {"$ref": _SCHEMAS.format(name=name)}


def _get(summary: str, *, secured: bool = True) -> Json:
    operation: Json = {
        "summary": summary,
        "responses": {
            "200": {
                "description": "OK",
                "content": {JSON: {"schema": {"type": "object"}}},
            }
        },
    }
    if secured:
        operation["security"] = [{"key": []}, {}]
    return {"get": operation}


def _rows(product: DoorProduct, limits: Limits) -> Json:
    """Describe the route that decides rows, or ranks items for them."""
    words = ("Decide", "RowAnswer", "RefusedRow")
    if product.ranking is not None:
        words = ("Rank items for", "ListAnswer", "RefusedList")
    verb, answered, refused = words
    row, answer = _ref(f"Row_{product.name}"), _ref(answered)
    rows = {"type": "array", "items": row, "minItems": 1, "maxItems": limits.rows}
    answers = {"type": "array", "items": {"anyOf": [answer, _ref(refused)]}}
    names = [*_HEADERS]
    names.append(
        ("idempotency-key", f"The {product.id_name} of the only row.", _TEXT),
    )
    parameters = [_header(*one) for one in names]
    dry_run = {"type": "boolean"}
    parameters.append({"name": "dry_run", "in": "query", "schema": dry_run})
    return _post(
        f"{verb} one row of {product.name}, or a list of rows.",
        parameters=parameters,
        request={"anyOf": [row, rows]},
        example=example_row(product),
        response={"anyOf": [answer, answers]},
        problem=(PROBLEM_JSON, "Problem"),
    )


def _infer(product: DoorProduct) -> Json:
    return _post(
        f"Decide rows of {product.name} by KServe's inference protocol v2.",
        parameters=[_header(*one) for one in _HEADERS],
        request=_ref("InferenceRequest"),
        example=example_inference(product),
        response=_ref("InferenceResponse"),
        problem=(JSON, "InferenceError"),
    )


def _header(name: str, description: str, schema: Mapping[str, str]) -> Json:
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _post(
    summary: str,
    *,
    parameters: list[Json],
    request: Json,
    example: Json,
    response: Json,
    problem: tuple[str, str],
) -> Json:
    media_type, schema = problem
    content = {media_type: {"schema": _ref(schema)}}
    refusals = {
        status: {"description": text, "content": content}
        for status, text in _STATUSES.items()
    }
    return {
        "summary": summary,
        "security": [{"key": []}, {}],
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": request, "example": example}},
        },
        "responses": {
            "200": {
                "description": "An answer for each row.",
                "content": {JSON: {"schema": response}},
            },
            **refusals,
        },
    }
