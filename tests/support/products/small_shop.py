"""Write a small product that ranks: six items and a linear model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from tollgate.engine.ranking_context import ranking_dtype
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy import POLICY_FILE
from tollgate.ranking.candidates import (
    CANDIDATES,
    RETRIEVAL_INPUTS,
    RETRIEVAL_OUTPUTS,
    feature_names,
)
from tollgate.ranking.catalogue import EVERYONE, RETRIEVAL_FILE, Catalogue
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
    ARTIFACT_FILE,
    CANDIDATE_FEATURES,
    CHALLENGER_RELEVANCE,
    LIST_OUTPUTS,
    RANKED_TYPES,
    RELEVANCE,
    context_dtype,
)

ITEMS = 6
_STEPS = {"shop_candidates": "CandidateStep", "shop_ranking": "RankingStep"}
HISTORY = 20  # events of a user
RANKING_CONTEXT_BYTES = ranking_dtype(candidates=CANDIDATES, history=HISTORY).itemsize

SPEC = """\
version: 1
product: shop
amount: false
entities:
  user: {key: user_id, cap: 64}
fields:
  - {name: item, type: category, use: events}
  - {name: action, type: category, vocabulary: [view, cart, purchase], use: events}
  - {name: slot, type: category, vocabulary: [home, product, cart], use: policy}
history: {entity: user, of: [item, action], most: 20}
features:
  - {name: events_1h, entity: user, aggregate: count, window: 1h}
  - {name: events_30d, entity: user, aggregate: count, window: 30d}
"""

RANKING = """\
ranking:
  items: 4
  bought: 30d
  stock: out_of_stock
  rules:
    - {name: home, owner: shop, boost: {factor: 2}, items: [i5], when: {slot: [home]}}
"""
POLICY = f"""\
version: 1
product: shop
outcomes: [personal, weak, fallback]
labels: [relevance]
score: {{value: relevance, worse: lower}}
thresholds: {{weak: 0.5}}
fallback: {{model_output: fallback}}
rules: []
{RANKING}reasons:
  SCORE_WEAK: No item fits this user well.
  MODEL_UNAVAILABLE: No relevance could be computed.
"""


def small_catalogue(items: int = ITEMS) -> Catalogue:
    """Make some items in two categories, the first the most popular, save in a cart."""
    at = np.arange(items)
    near = np.stack([(at + 1) % items, (at + 2) % items], axis=1).astype(np.int32)
    angle = at / items
    vectors = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    share = ((items - at) / (items * (items + 1) / 2)).astype(np.float32)
    return Catalogue(
        item_ids=[f"i{one}".encode() for one in at],
        categories=(at % 2).astype(np.int32),
        category_names=["books", "garden"],
        popularity=share,
        recent_popularity=share,
        vectors=vectors,
        neighbours=near,
        similarities=np.full(near.shape, 0.5, np.float32),
        followers=near,
        follow_shares=np.full(near.shape, 0.25, np.float32),
        factors=vectors,
        action_weights=np.array([1, 2, 3, 1], np.float32),
        half_life=10.0,
        similar_count=2,
        statics=np.zeros((items, 0), np.float32),
        static_names=[],
        segments=[EVERYONE, "cart"],
        popular=np.stack([at, at[::-1]]).astype(np.int32),
        segment_field="slot",
    )


def retrieval_onnx(catalogue: Catalogue) -> bytes:
    """Write the retrieval of a catalogue: the product of factors, without penalties."""
    from onnx import TensorProto, helper, numpy_helper

    user, penalty = RETRIEVAL_INPUTS
    index, score, scores = RETRIEVAL_OUTPUTS
    value, size = helper.make_tensor_value_info, catalogue.size
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [user, "factors"], [scores]),
            helper.make_node("Add", [scores, penalty], ["allowed"]),
            helper.make_node("TopK", ["allowed", "most"], [score, index]),
        ],
        "retrieval",
        [
            value(user, TensorProto.FLOAT, [1, catalogue.factors.shape[1]]),
            value(penalty, TensorProto.FLOAT, [1, size]),
        ],
        [
            value(index, TensorProto.INT64, [1, None]),
            value(score, TensorProto.FLOAT, [1, None]),
            value(scores, TensorProto.FLOAT, [1, size]),
        ],
        [
            numpy_helper.from_array(catalogue.factors.T.copy(), "factors"),
            numpy_helper.from_array(np.int64([min(CANDIDATES, size)]), "most"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


def linear_ranker_onnx(weights: Mapping[str, float], names: tuple[str, ...]) -> bytes:
    """Write a model that adds weighted features of each candidate."""
    from onnx import TensorProto, helper, numpy_helper

    row = np.array([weights.get(name, 0.0) for name in names], np.float32)
    ends = [
        helper.make_tensor_value_info(
            CANDIDATE_FEATURES, TensorProto.FLOAT, ["N", CANDIDATES, len(names)]
        ),
        helper.make_tensor_value_info(RELEVANCE, TensorProto.FLOAT, ["N", CANDIDATES]),
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Mul", [CANDIDATE_FEATURES, "weights"], ["parts"]),
            helper.make_node("ReduceSum", ["parts", "last"], [RELEVANCE], keepdims=0),
        ],
        "linear",
        ends[:1],
        ends[1:],
        [
            numpy_helper.from_array(row, "weights"),
            numpy_helper.from_array(np.int64([2]), "last"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


def write_shop(repository: Path, *, items: int = ITEMS) -> FeatureSpec:
    """
    Write the four models of the product `shop`, without a release.

    Args:
        repository: A model repository.
        items: Number of items.
    """
    first, model, last = (
        repository / name / "1"
        for name in ("shop_candidates", "shop_model", "shop_ranking")
    )
    for folder in (first, model, last, repository / "shop" / "1"):
        folder.mkdir(parents=True)
    (first / SPEC_FILE).write_text(SPEC)
    (last / POLICY_FILE).write_text(POLICY)
    spec = load_spec(first / SPEC_FILE)
    catalogue = small_catalogue(items)
    catalogue.save(first)
    catalogue.save(last)
    (first / RETRIEVAL_FILE).write_bytes(retrieval_onnx(catalogue))
    for step, logic in _STEPS.items():
        (repository / step / "1" / "model.py").write_text(
            f"from tollgate.steps import {logic}\n\n\n"
            f"class TritonPythonModel({logic}):\n    pass\n"
        )
    for name, text in configurations(spec, len(feature_names(catalogue))).items():
        (repository / name / "config.pbtxt").write_text(text)
    write_linear_model(model, spec, weights={"popularity": 1.0})
    return spec


def write_linear_model(
    folder: Path, spec: FeatureSpec, *, weights: Mapping[str, float]
) -> None:
    """Write a linear model with its record into a folder."""
    names = feature_names(small_catalogue())
    (folder / MODEL_FILE).write_bytes(linear_ranker_onnx(weights, names))
    record = Artifact(
        sha256=hash_file(folder / MODEL_FILE),
        spec_hash=spec_hash_text(spec.spec_hash),
        features=names,
    )
    (folder / ARTIFACT_FILE).write_bytes(msgspec.json.encode(record))


def release_shop(repository: Path, spec: FeatureSpec) -> Release:
    """Make a release of version 1 of each step."""
    release = compose_release(
        RepositorySnapshot(repository),
        product="shop",
        versions={"shop_candidates": 1, "shop_model": 1, "shop_ranking": 1},
        actor="test",
        reason="first",
        spec_hash=spec_hash_text(spec.spec_hash),
    )
    write_release(repository, release)
    return release


def configurations(spec: FeatureSpec, features: int) -> dict[str, str]:
    """Write config.pbtxt for each model, with a number of features of a candidate."""
    context = context_dtype(spec.entity_names, spec.field_names).itemsize
    answer = "\n".join(
        f'output {{ name: "{name}" data_type: {kind} '
        f"dims: [ {-1 if name in LIST_OUTPUTS else 1} ] }}"
        for name, kind in RANKED_TYPES.items()
    )
    answers = "\n".join(
        f'      output_map {{ key: "{name}" value: "{name}" }}' for name in RANKED_TYPES
    )
    batches = "max_batch_size: 32\n"
    runs = (
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        "dynamic_batching { max_queue_delay_microseconds: 300 }\n"
    )
    optional = "data_type: TYPE_STRING dims: [ 1 ] optional: true }"
    request = f"""\
input {{ name: "user_id" data_type: TYPE_STRING dims: [ 1 ] }}
input {{ name: "event_time" data_type: TYPE_INT64 dims: [ 1 ] }}
input {{ name: "slot" {optional}
input {{ name: "exclude" {optional}
"""
    ident = "data_type: TYPE_STRING dims: [ 1 ] }\n"
    return {
        "shop": f"""\
name: "shop"
platform: "ensemble"
{batches}input {{ name: "request_id" {ident}{request}{answer}
ensemble_scheduling {{
  step [
    {{
      model_name: "shop_candidates"
      model_version: -1
      input_map {{ key: "transaction_id" value: "request_id" }}
      input_map {{ key: "user_id" value: "user_id" }}
      input_map {{ key: "event_time" value: "event_time" }}
      input_map {{ key: "slot" value: "slot" }}
      input_map {{ key: "exclude" value: "exclude" }}
      output_map {{ key: "features" value: "features" }}
      output_map {{ key: "context" value: "context" }}
      output_map {{ key: "candidate_features" value: "candidate_features" }}
      output_map {{ key: "ranking_context" value: "ranking_context" }}
    }},
    {{
      model_name: "shop_model"
      model_version: -1
      input_map {{ key: "candidate_features" value: "candidate_features" }}
      output_map {{ key: "relevance" value: "relevance" }}
    }},
    {{
      model_name: "shop_ranking"
      model_version: -1
      input_map {{ key: "relevance" value: "relevance" }}
      input_map {{ key: "features" value: "features" }}
      input_map {{ key: "context" value: "context" }}
      input_map {{ key: "ranking_context" value: "ranking_context" }}
{answers}
    }}
  ]
}}
""",
        "shop_candidates": f"""\
name: "shop_candidates"
backend: "python"
{batches}input {{ name: "transaction_id" {ident}{request}\
output {{ name: "features" data_type: TYPE_FP32 dims: [ {len(spec.features)} ] }}
output {{ name: "context" data_type: TYPE_UINT8 dims: [ {context} ] }}
output {{ name: "candidate_features" data_type: TYPE_FP32 \
dims: [ {CANDIDATES}, {features} ] }}
output {{ name: "ranking_context" data_type: TYPE_UINT8 \
dims: [ {RANKING_CONTEXT_BYTES} ] }}
{runs}parameters {{ key: "store_deadline_ms" value {{ string_value: "20" }} }}
parameters {{ key: "updates" value {{ string_value: "stream" }} }}
""",
        "shop_model": f"""\
name: "shop_model"
backend: "onnxruntime"
{batches}input {{ name: "candidate_features" data_type: TYPE_FP32 \
dims: [ {CANDIDATES}, {features} ] }}
output {{ name: "relevance" data_type: TYPE_FP32 dims: [ {CANDIDATES} ] }}
{runs}parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
""",
        "shop_ranking": f"""\
name: "shop_ranking"
backend: "python"
{batches}input {{ name: "relevance" data_type: TYPE_FP32 dims: [ {CANDIDATES} ] }}
input {{ name: "features" data_type: TYPE_FP32 dims: [ {len(spec.features)} ] }}
input {{ name: "context" data_type: TYPE_UINT8 dims: [ {context} ] }}
input {{ name: "ranking_context" data_type: TYPE_UINT8 \
dims: [ {RANKING_CONTEXT_BYTES} ] }}
input {{ name: "{CHALLENGER_RELEVANCE}" data_type: TYPE_FP32 \
dims: [ {CANDIDATES} ] optional: true }}
{answer}
{runs}""",
    }
