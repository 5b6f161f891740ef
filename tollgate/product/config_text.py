"""Write the four config.pbtxt of a product, and its steps' model.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tollgate.features.spec import FeatureSpec
from tollgate.schema import (
    AMOUNT,
    ANSWER_TYPES,
    CONTEXT,
    EVENT_TIME,
    EXACT_FEATURES,
    FEATURES,
    MAX_BATCH_ROWS,
    PROBABILITIES,
    context_dtype,
)

_TYPES = {AMOUNT: "TYPE_FP64", EVENT_TIME: "TYPE_INT64"}
NO_SOURCES: Mapping[str, str] = MappingProxyType({})  # each tensor has its own name
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
    vector = len(spec.features)
    context = context_dtype(spec.entity_names, spec.field_names).itemsize
    return {
        f"{product}/config.pbtxt": _ensemble(spec, wide=wide),
        f"{features}/config.pbtxt": _features(
            spec, vector=vector, context=context, wide=wide
        ),
        f"{model}/config.pbtxt": _model(model, vector=vector, wide=wide),
        f"{decision}/config.pbtxt": _decision(decision, vector=vector, context=context),
    }


def step_texts(product: str) -> dict[str, str]:
    """Write the Python steps' model.py: path in the repository -> text."""
    features, _, decision = step_names(product)
    does = {
        features: ("Validate rows and assemble features.", "FeatureStep"),
        decision: ("Turn probabilities into decisions with reasons.", "DecisionStep"),
    }
    return {
        f"{step}/1/model.py": f'"""{what}"""\n\nfrom tollgate.steps import {kind}\n\n\n'
        f'class TritonPythonModel({kind}):\n    """The step of `{step}`; the logic is '
        'the library\'s."""\n'
        for step, (what, kind) in does.items()
    }


def _tensor(name: str, kind: str, *, dims: int = 1, optional: bool = False) -> str:
    more = " optional: true" if optional else ""
    return f'  {{ name: "{name}" data_type: {kind} dims: [ {dims} ]{more} }}'


def _inputs(spec: FeatureSpec) -> str:
    lines = [_tensor(name, _TYPES.get(name, "TYPE_STRING")) for name in spec.columns]
    lines += [
        _tensor(one.name, _FIELD_TYPES[one.type], optional=True) for one in spec.fields
    ]
    return "input [\n" + ",\n".join(lines) + "\n]\n"


def _answers() -> str:
    lines = [_tensor(name, kind) for name, kind in ANSWER_TYPES.items()]
    return "output [\n" + ",\n".join(lines) + "\n]\n"


def _maps(
    kind: str, names: Sequence[str], *, sources: Mapping[str, str] = NO_SOURCES
) -> str:
    return "".join(
        f'      {kind} {{ key: "{name}" value: "{sources.get(name, name)}" }}\n'
        for name in names
    )


def _step(
    name: str,
    *,
    takes: Sequence[str],
    gives: Sequence[str],
    sources: Mapping[str, str] = NO_SOURCES,
) -> str:
    taken = _maps("input_map", takes, sources=sources)
    return (
        f'    {{\n      model_name: "{name}"\n      model_version: -1\n'
        f"{taken}{_maps('output_map', gives)}    }}"
    )


def _ensemble(spec: FeatureSpec, *, wide: bool) -> str:
    features, model, decision = step_names(spec.product)
    steps = (
        _step(
            features,
            takes=(*spec.columns, *spec.field_names),
            gives=(FEATURES, CONTEXT, *((EXACT_FEATURES,) if wide else ())),
        ),
        _step(
            model,
            takes=(FEATURES,),
            gives=(PROBABILITIES,),
            sources={FEATURES: EXACT_FEATURES} if wide else {},
        ),
        _step(
            decision,
            takes=(PROBABILITIES, FEATURES, CONTEXT),
            gives=tuple(ANSWER_TYPES),
        ),
    )
    return f"""\
# {spec.product}: what services call. Features, then the model, then the decision.
# This file is the operators' own. Which version of each step runs stands in
# release.json and is merged in at load; `tollgate check` says whether all files fit.

name: "{spec.product}"
platform: "ensemble"

# Rows in one request, and in one batch of the steps. All four models say the same.
max_batch_size: {MAX_BATCH_ROWS}

# What a caller sends. Dims are per row; on the wire every tensor is [N, 1]. Ids are
# UTF-8 of 1 to 128 bytes, event_time is microseconds since 1970, UTC. The fields that
# features.yaml declares are optional, here and in {features}.
{_inputs(spec)}
# What a caller gets, per row: approve, review or decline (empty for a bad row); the
# score; the codes of the reasons, joined by |; bits that say why an answer is worth
# less than usual; what is wrong with the row; the release that decided.
{_answers()}
# Steps stand in the order in which data flows. model_version stays -1: the release
# names the version.
ensemble_scheduling {{
  step [
{_join(steps)}
  ]
}}
"""


def _join(steps: Sequence[str]) -> str:
    return ",\n".join(steps)


def _features(spec: FeatureSpec, *, vector: int, context: int, wide: bool) -> str:
    exact, told = "", ""
    if wide:
        exact = ",\n" + _tensor(EXACT_FEATURES, "TYPE_FP64", dims=vector)
        told = (
            "# exact_features: the vector for the model, each number of the request as "
            "it was sent.\n"
        )
    store = ""
    if spec.entities:
        store = """
# How long a batch waits for the store before its rows are scored on default values and
# marked as degraded.
parameters { key: "store_deadline_ms" value { string_value: "5" } }
"""
    return f"""\
# {spec.product}_features: check the rows and assemble the vector of features.yaml.

name: "{spec.product}_features"
backend: "python"
max_batch_size: {MAX_BATCH_ROWS}

{_inputs(spec)}
# features: in the order of features.yaml. context: one packed record per row for the
# decision step; its size follows from the entities and fields of features.yaml.
{told}output [
{_tensor(FEATURES, "TYPE_FP32", dims=vector)},
{_tensor(CONTEXT, "TYPE_UINT8", dims=context)}{exact}
]

# One instance: requests that arrive while it works are taken as one batch.
instance_group [ {{ count: 1 kind: KIND_CPU }} ]

# Requests wait here for one another, 4.5 ms or until there are 32 rows. The batch
# stays together: the model step waits 0.3 ms and the decision step 0.2 ms for its rest
# (docs/adr/0011-requests-gather-at-the-first-step.md). No default_queue_policy, on
# purpose: it stalls Triton's batcher (docs/adr/0001-batching-without-delay.md).
dynamic_batching {{ max_queue_delay_microseconds: 4500 }}
{store}"""


def _model(name: str, *, vector: int, wide: bool) -> str:
    kind = "TYPE_FP64" if wide else "TYPE_FP32"
    warm = ",\n".join(
        _warmup(rows, vector=vector, kind=kind) for rows in (1, 8, MAX_BATCH_ROWS)
    )
    return f"""\
# {name}: the trained classifier as ONNX.

name: "{name}"
backend: "onnxruntime"
max_batch_size: {MAX_BATCH_ROWS}

# {vector} = the number of features in features.yaml, in its order.
input [ {{ name: "features" data_type: {kind} dims: [ {vector} ] }} ]

# P(the other outcome), P(the outcome that the policy looks for).
output [ {{ name: "probabilities" data_type: TYPE_FP32 dims: [ 2 ] }} ]

instance_group [ {{ count: 1 kind: KIND_CPU }} ]

# How long the first request of a batch waits for the rest: they come from the feature
# step one after the other.
dynamic_batching {{ max_queue_delay_microseconds: 300 }}

# One thread for one batch: the other cores are busy with the other steps.
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}

# Zeros at three batch sizes when the model is loaded, so that no caller pays for the
# first allocations.
model_warmup [
{warm}
]
"""


def _warmup(rows: int, *, vector: int, kind: str) -> str:
    told = "1 row" if rows == 1 else f"{rows} rows"
    return f"""\
  {{
    name: "{told}"
    batch_size: {rows}
    inputs {{
      key: "features"
      value {{ data_type: {kind} dims: [ {vector} ] zero_data: true }}
    }}
  }}"""


def _decision(name: str, *, vector: int, context: int) -> str:
    return f"""\
# {name}: turn a probability into approve, review or decline by policy.yaml.

name: "{name}"
backend: "python"
max_batch_size: {MAX_BATCH_ROWS}

# features: what rules may look at. context: the record of the feature step, byte for
# byte; the sizes must agree. challenger_probabilities: connected while a challenger
# answers a share of the requests.
input [
{_tensor(PROBABILITIES, "TYPE_FP32", dims=2)},
{_tensor(FEATURES, "TYPE_FP32", dims=vector)},
{_tensor(CONTEXT, "TYPE_UINT8", dims=context)},
{_tensor("challenger_probabilities", "TYPE_FP32", dims=2, optional=True)}
]

{_answers()}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]

# How long the first request of a batch waits for the rest, as in the model step.
dynamic_batching {{ max_queue_delay_microseconds: 200 }}
"""


def all_texts(spec: FeatureSpec, *, wide: bool) -> Mapping[str, str]:
    """Write all files that follow from a product's features."""
    return {
        **config_texts(spec, wide=wide),
        **step_texts(spec.product),
        f"{spec.product}/1/.gitkeep": "",
    }
