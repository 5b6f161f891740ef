"""Write a product from its features.yaml and policy.yaml, with a simple model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy import POLICY_FILE
from tollgate.repository.hashes import hash_file
from tollgate.repository.models.artifact_file import Artifact
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import (
    Release,
    spec_hash_text,
    write_release,
)
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.schema import (
    AMOUNT,
    ANSWER_TYPES,
    ARTIFACT_FILE,
    CONTEXT,
    EVENT_TIME,
    FEATURES,
    MAX_BATCH_ROWS,
    PROBABILITIES,
    context_dtype,
)

_PARTS = ("features", "model", "decision")
_CLASSES = 2
_KINDS = {AMOUNT: "TYPE_FP64", EVENT_TIME: "TYPE_INT64"}
_FIELD_KINDS = {"number": "TYPE_FP64", "category": "TYPE_STRING"}
_STEP = """\
from tollgate.steps import {logic}


class TritonPythonModel({logic}):
    pass
"""


def write_product(
    repository: Path, *, spec_text: str, policy_text: str, store_deadline_ms: int
) -> FeatureSpec:
    """
    Write the configurations of a product's four models, and the code of its steps.

    Args:
        repository: A model repository.
        spec_text: The features.yaml, which contains the product's name.
        policy_text: The policy.yaml; two labels.
        store_deadline_ms: Store deadline of a batch, ms.

    Raises:
        SpecError: The features.yaml is not valid.
    """
    path = repository / SPEC_FILE
    repository.mkdir(parents=True, exist_ok=True)
    path.write_text(spec_text)
    spec = load_spec(path)
    name = spec.product
    for part in ("", "_features", "_model", "_decision"):
        (repository / f"{name}{part}" / "1").mkdir(parents=True)
    features, decision = (
        repository / f"{name}_features",
        repository / f"{name}_decision",
    )
    path.rename(features / "1" / SPEC_FILE)
    (decision / "1" / POLICY_FILE).write_text(policy_text)
    for folder, logic in ((features, "FeatureStep"), (decision, "DecisionStep")):
        (folder / "1" / "model.py").write_text(_STEP.format(logic=logic))
    for model, text in _configurations(spec).items():
        (repository / model / "config.pbtxt").write_text(text)
    with (features / "config.pbtxt").open("a") as config:
        value = f'string_value: "{store_deadline_ms}"'
        config.write(f'parameters {{ key: "store_deadline_ms" value {{ {value} }} }}\n')
    return spec


def release_simple_model(repository: Path, spec: FeatureSpec) -> Release:
    """
    Write a model that depends on every feature, with NaN as 0, and make a release.

    Args:
        repository: Repository that `write_product` wrote.
        spec: The product's features.
    """
    folder = repository / f"{spec.product}_model" / "1"
    (folder / MODEL_FILE).write_bytes(_graph(len(spec.features)))
    record = Artifact(
        sha256=hash_file(folder / MODEL_FILE),
        spec_hash=spec_hash_text(spec.spec_hash),
        features=spec.feature_names,
    )
    (folder / ARTIFACT_FILE).write_bytes(msgspec.json.encode(record))
    return release_first(repository, spec)


def release_first(repository: Path, spec: FeatureSpec) -> Release:
    """Make a release of version 1 of each step of a product."""
    release = compose_release(
        RepositorySnapshot(repository),
        product=spec.product,
        versions={f"{spec.product}_{part}": 1 for part in _PARTS},
        actor="loadtests",
        reason="first",
        spec_hash=spec_hash_text(spec.spec_hash),
    )
    write_release(repository, release)
    return release


def _graph(features: int) -> bytes:
    """
    Make a graph of sigmoid(mean of the features / 100 - 0.5) and its complement to 1.
    """
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("IsNaN", [FEATURES], ["lacking"]),
        helper.make_node("Where", ["lacking", "zero", FEATURES], ["there"]),
        helper.make_node("MatMul", ["there", "weights"], ["sum"]),
        helper.make_node("Sub", ["sum", "half"], ["margin"]),
        helper.make_node("Sigmoid", ["margin"], ["second"]),
        helper.make_node("Sub", ["one", "second"], ["first"]),
        helper.make_node("Concat", ["first", "second"], [PROBABILITIES], axis=1),
    ]
    numbers = {"zero": 0.0, "half": 0.5, "one": 1.0}
    weights = np.full((features, 1), 0.01 / features, np.float32)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size])
        for name, size in ((FEATURES, features), (PROBABILITIES, _CLASSES))
    ]
    graph = helper.make_graph(
        nodes,
        "mean",
        ends[:1],
        ends[1:],
        [
            numpy_helper.from_array(weights, "weights"),
            *(
                numpy_helper.from_array(np.array([[one]], np.float32), name)
                for name, one in numbers.items()
            ),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return bytes(model.SerializeToString())


def _configurations(spec: FeatureSpec) -> dict[str, str]:
    """Write config.pbtxt for each model."""
    context_bytes = context_dtype(spec.entity_names, spec.field_names).itemsize
    features = {FEATURES: ("TYPE_FP32", len(spec.features))}
    context = {CONTEXT: ("TYPE_UINT8", context_bytes)}
    probabilities = {PROBABILITIES: ("TYPE_FP32", _CLASSES)}
    inputs = {name: (_KINDS.get(name, "TYPE_STRING"), 1) for name in spec.columns}
    inputs |= {one.name: (_FIELD_KINDS[one.type], 1) for one in spec.fields}
    answer = {name: (kind, 1) for name, kind in ANSWER_TYPES.items()}
    name = spec.product
    parts = {
        f"{name}_features": (inputs, features | context, "python"),
        f"{name}_model": (features, probabilities, "onnxruntime"),
        f"{name}_decision": (probabilities | features | context, answer, "python"),
    }
    optional = frozenset(spec.field_names)
    written = {}
    steps = []
    for model, (reads, writes, backend) in parts.items():
        written[model] = (
            f'name: "{model}"\nbackend: "{backend}"\n'
            + _ends(reads, writes, optional=optional)
            + "instance_group [ { count: 1 kind: KIND_CPU } ]\ndynamic_batching { }\n"
        )
        wires = [*_wires("input_map", reads), *_wires("output_map", writes)]
        head = f'{{ model_name: "{model}" model_version: -1'
        steps.append("\n".join([head, *wires]) + " }")
    written[name] = (
        f'name: "{name}"\nplatform: "ensemble"\n'
        + _ends(inputs, answer, optional=optional)
        + "ensemble_scheduling { step [\n"
        + ",\n".join(steps)
        + "\n] }\n"
    )
    return written


def _ends(
    reads: dict[str, tuple[str, int]],
    writes: dict[str, tuple[str, int]],
    *,
    optional: frozenset[str],
) -> str:
    """Declare the inputs and outputs of a model."""
    text = f"max_batch_size: {MAX_BATCH_ROWS}\n"
    for kind, tensors in (("input", reads), ("output", writes)):
        lines = [
            f'  {{ name: "{name}" data_type: {of} dims: [ {size} ]'
            + (" optional: true }" if kind == "input" and name in optional else " }")
            for name, (of, size) in tensors.items()
        ]
        text += f"{kind} [\n" + ",\n".join(lines) + "\n]\n"
    return text


def _wires(kind: str, tensors: dict[str, tuple[str, int]]) -> list[str]:
    return [f'{kind} {{ key: "{one}" value: "{one}" }}' for one in tensors]
