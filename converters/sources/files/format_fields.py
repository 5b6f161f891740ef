"""
List every field of each model file format: read, without effect, or refused.

A field that is in no table is refused by name. `docs/conversion-formats.md` shows these
tables; a test compares the page with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

Use = Literal["read", "no effect", "refused"]


class Field(msgspec.Struct, frozen=True):
    """
    One field of a format.

    Attributes:
        path: Path of the field: names joined by dots, `[]` for each entry of a list,
            `*` for any name.
        use: Treatment of the field.
        why: Its purpose, or the reason why it changes no prediction, or is refused.
    """

    path: str
    use: Use
    why: str


def _fields(prefix: str, use: Use, rows: Mapping[str, str]) -> tuple[Field, ...]:
    return tuple(Field(f"{prefix}{name}", use, why) for name, why in rows.items())


_MODEL = "learner.gradient_booster.model."
_TREE = f"{_MODEL}trees[]."

XGBOOST = (
    *_fields(
        "",
        "read",
        {
            "version": "refused when newer than 3.4 and than the installed xgboost, "
            "or older than 1.0",
            "learner": "",
            "learner.learner_model_param": "",
            "learner.learner_model_param.base_score": "margin every row starts from",
            "learner.learner_model_param.num_class": "classes; agrees with the "
            "objective's",
            "learner.learner_model_param.num_feature": "columns",
            "learner.learner_model_param.num_target": "must be 1",
            "learner.objective": "",
            "learner.objective.name": "four objectives are converted",
            "learner.objective.softmax_multiclass_param": "",
            "learner.objective.softmax_multiclass_param.num_class": "classes",
            "learner.attributes": "",
            "learner.attributes.best_iteration": "trees after this round are cut off",
            "learner.attributes.best_ntree_limit": "agrees with best_iteration",
            "learner.feature_names": "names of the columns",
            "learner.feature_types": "`c` where a split tests categories",
            "learner.gradient_booster": "",
            "learner.gradient_booster.name": "`gbtree` or `dart`",
            "learner.gradient_booster.gbtree": "of `dart`: holds `model`, with the "
            "fields below",
            "learner.gradient_booster.gbtree.name": "of `dart`: must be `gbtree`",
            "learner.gradient_booster.weight_drop": "of `dart`: a factor for each tree",
            "learner.gradient_booster.model": "",
        },
    ),
    *_fields(
        _MODEL,
        "read",
        {
            "weight_drop": "since 3.4: a factor for each tree",
            "gbtree_model_param": "",
            "gbtree_model_param.num_trees": "agrees with the list of trees",
            "gbtree_model_param.num_parallel_tree": "trees of a round; absent before "
            "1.4",
            "gbtree_model_param.size_leaf_vector": "0 or 1; absent since 2.0",
            "iteration_indptr": "trees of each round; absent before 2.0",
            "tree_info": "class of each tree",
            "cats": "categories of a data frame; since 3.1",
            "cats.enc": "",
            "cats.enc[].type": "of numbers: a type of whole numbers that holds them",
            "cats.enc[].values": "categories; texts as bytes",
            "cats.enc[].offsets": "where each text begins",
            "cats.feature_segments": "agrees with `enc`",
            "cats.sorted_idx": "agrees with `enc`",
            "trees": "",
        },
    ),
    *_fields(
        _TREE,
        "read",
        {
            "id": "must be the position",
            "left_children": "",
            "right_children": "",
            "parents": "agrees with the children",
            "split_indices": "column of a split",
            "split_conditions": "threshold of a split, value of a leaf",
            "split_type": "1 where a split tests categories; absent before 1.3",
            "default_left": "where a missing value goes",
            "categories": "codes that go to the right",
            "categories_nodes": "",
            "categories_segments": "",
            "categories_sizes": "",
            "tree_param": "",
            "tree_param.num_nodes": "agrees with the lists",
            "tree_param.size_leaf_vector": "0 or 1",
        },
    ),
    *_fields(
        "learner.",
        "no effect",
        {
            "learner_model_param.boost_from_average": "chooses base_score in training",
            "objective.reg_loss_param": "",
            "objective.reg_loss_param.scale_pos_weight": "weighs rows in training",
            "attributes.*": "notes of users; best_score, scikit_learn",
        },
    ),
    *_fields(
        _TREE,
        "no effect",
        {
            "base_weights": "read when trees are pruned by depth",
            "sum_hessian": "read for explanations",
            "loss_changes": "gain of a split in training",
            "leaf_child_counts": "follows from the children; until 1.2",
            "tree_param.num_deleted": "nodes that no row reaches",
            "tree_param.num_feature": "stands in learner_model_param",
        },
    ),
    Field(
        f"{_TREE}leaf_weights",
        "refused",
        "multi_strategy is 'multi_output_tree', whose leaves hold a number per class; "
        "train with 'one_output_per_tree'",
    ),
)


LIGHTGBM = (
    *_fields(
        "",
        "read",
        {
            "version": "v2, v3 or v4",
            "num_class": "classes; agrees with the objective's",
            "num_tree_per_iteration": "trees of a round",
            "max_feature_idx": "columns, less one",
            "objective": "`binary` with its sigmoid, or `multiclass`",
            "average_output": "a random forest: sums are divided by the rounds",
            "feature_names": "names of the columns",
            "feature_infos": "kinds and ranges of the columns, for categories",
            "tree_sizes": "agrees with the number of trees; the bytes are counted "
            "from the trees themselves",
            "pandas_categorical": "categories of a data frame",
            "Tree": "must be the position",
            "parameters": "",
        },
    ),
    *_fields(
        "Tree.",
        "read",
        {
            "num_leaves": "agrees with the lists",
            "num_cat": "agrees with the lists",
            "split_feature": "column of a split",
            "threshold": "of a split, or the number of its set of categories",
            "decision_type": "kind of a split, and what is missing",
            "left_child": "",
            "right_child": "",
            "leaf_value": "",
            "cat_boundaries": "",
            "cat_threshold": "sets of categories, as bits",
            "is_linear": "must be 0",
        },
    ),
    *_fields(
        "parameters.",
        "read",
        {
            "boosting": "agrees with average_output",
            "objective": "agrees with the objective above",
            "num_class": "agrees with num_class above",
            "sigmoid": "agrees with the objective above",
            "linear_tree": "must be 0",
        },
    ),
    *_fields(
        "",
        "no effect",
        {
            "label_index": "column of the label in the table of training",
            "monotone_constraints": "used in training",
            "feature_importances": "counts of splits",
            "feature importances": "counts of splits, until v2",
            "parameters.*": "used in training; the trees and their missing values "
            "carry what prediction needs",
            "Tree.split_gain": "gain of a split in training",
            "Tree.leaf_weight": "sum of hessians in training",
            "Tree.leaf_count": "read for explanations",
            "Tree.internal_value": "read when trees are pruned by depth",
            "Tree.internal_weight": "sum of hessians in training",
            "Tree.internal_count": "read for explanations",
            "Tree.shrinkage": "leaves are shrunk already",
        },
    ),
    *_fields(
        "Tree.",
        "refused",
        dict.fromkeys(
            ("leaf_const", "num_features", "leaf_features", "leaf_coeff"),
            "linear_tree: leaves are linear models, which a tree in ONNX cannot hold; "
            "train with linear_tree=False",
        ),
    ),
)


ONNX = (
    *_fields(
        "ModelProto.",
        "read",
        {
            "ir_version": "3 to the newest that the installed onnx knows; lowered to "
            "the server's",
            "opset_import": "each domain once; refused when newer than the server's",
            "graph": "",
            "functions": "operators that the file defines itself",
        },
    ),
    *_fields(
        "ModelProto.",
        "no effect",
        {
            "producer_name": "a note",
            "producer_version": "a note",
            "domain": "a note",
            "model_version": "a note",
            "doc_string": "a note",
            "metadata_props": "notes",
            "configuration": "devices of the exporter",
        },
    ),
    Field(
        "ModelProto.training_info",
        "refused",
        "is for training: export the model for inference",
    ),
    *_fields(
        "GraphProto.",
        "read",
        dict.fromkeys(
            ("node", "initializer", "sparse_initializer", "input", "output"), ""
        ),
    ),
    *_fields(
        "GraphProto.",
        "no effect",
        {
            "name": "a note",
            "doc_string": "a note",
            "metadata_props": "notes",
            "value_info": "shapes that follow from the operators",
            "quantization_annotation": "hints for other runtimes",
        },
    ),
    *_fields(
        "NodeProto.",
        "read",
        {
            "input": "",
            "output": "",
            "op_type": "must be an operator of its opset",
            "domain": "ai.onnx or ai.onnx.ml",
            "attribute": "each known to the operator, once; lists of trees agree, "
            "class labels are sorted",
            "overload": "of the file's own functions",
        },
    ),
    *_fields(
        "NodeProto.",
        "no effect",
        {
            "name": "a note",
            "doc_string": "a note",
            "metadata_props": "notes",
            "device_configurations": "devices of the exporter",
        },
    ),
    *_fields(
        "AttributeProto.",
        "read",
        dict.fromkeys(
            (
                *("name", "type", "f", "i", "s", "t", "g", "floats", "ints", "strings"),
                *("tensors", "graphs", "sparse_tensor", "sparse_tensors", "tp"),
                *("type_protos", "ref_attr_name"),
            ),
            "",
        ),
    ),
    Field("AttributeProto.doc_string", "no effect", "a note"),
    *_fields(
        "TensorProto.",
        "read",
        {
            **dict.fromkeys(
                (
                    *("dims", "data_type", "float_data", "int32_data", "string_data"),
                    *("name", "int64_data", "raw_data", "double_data", "uint64_data"),
                    "data_location",
                ),
                "",
            ),
            "external_data": "inside the folder, up to 1 GiB",
        },
    ),
    Field("TensorProto.doc_string", "no effect", "a note"),
    Field("TensorProto.metadata_props", "no effect", "notes"),
    Field("TensorProto.segment", "refused", "is a part of a tensor, which is not read"),
    *_fields(
        "",
        "read",
        dict.fromkeys(
            (
                *("OperatorSetIdProto.domain", "OperatorSetIdProto.version"),
                *("ValueInfoProto.name", "ValueInfoProto.type"),
                *("TypeProto.tensor_type", "TypeProto.sequence_type"),
                *("TypeProto.map_type", "TypeProto.sparse_tensor_type"),
                *("TypeProto.optional_type", "Optional.elem_type"),
                *("Tensor.elem_type", "Tensor.shape", "Sequence.elem_type"),
                *("Map.key_type", "Map.value_type", "SparseTensor.elem_type"),
                *("SparseTensor.shape", "TensorShapeProto.dim", "Dimension.dim_value"),
                *("SparseTensorProto.values", "SparseTensorProto.indices"),
                *("SparseTensorProto.dims", "FunctionProto.name"),
                *("FunctionProto.input", "FunctionProto.output"),
                *("FunctionProto.attribute", "FunctionProto.attribute_proto"),
                *("FunctionProto.node", "FunctionProto.opset_import"),
                *("FunctionProto.domain", "FunctionProto.overload"),
                *("StringStringEntryProto.key", "StringStringEntryProto.value"),
            ),
            "",
        ),
    ),
    *_fields(
        "",
        "no effect",
        {
            "Dimension.dim_param": "a name for a size",
            "Dimension.denotation": "a note",
            "TypeProto.denotation": "a note",
            "ValueInfoProto.doc_string": "a note",
            "ValueInfoProto.metadata_props": "notes",
            "FunctionProto.doc_string": "a note",
            "FunctionProto.metadata_props": "notes",
            "FunctionProto.value_info": "shapes that follow from the operators",
            "TensorAnnotation.tensor_name": "hints for other runtimes",
            "TensorAnnotation.quant_parameter_tensor_names": "hints for other runtimes",
            **dict.fromkeys(
                (
                    "DeviceConfigurationProto.name",
                    "DeviceConfigurationProto.num_devices",
                    "DeviceConfigurationProto.device",
                    "NodeDeviceConfigurationProto.configuration_id",
                    "NodeDeviceConfigurationProto.sharding_spec",
                    "NodeDeviceConfigurationProto.pipeline_stage",
                ),
                "devices of the exporter",
            ),
        },
    ),
)

PICKLE = (
    *_fields(
        "",
        "read",
        {
            "scikit-learn: recorded version": "refused when newer than the installed; "
            "an older one is noted in the record and on the card",
            "scikit-learn: attributes of estimators": "those that predict_proba reads "
            "answer; those that skl2onnx reads are converted; the proof compares both",
            "xgboost: bytes of the Booster": "`Model` as an XGBoost file, above",
            "lightgbm: text of the Booster": "as LightGBM text, above",
            "classes_": "labels, in the order of the probabilities",
            "feature_names_in_": "names of the columns",
            "n_features_in_": "columns",
            "missing": "number that stands for a missing value, of XGBoost",
            "best_iteration": "of boosters: trees after it are cut off",
        },
    ),
    *_fields(
        "",
        "no effect",
        {
            "xgboost: `Config` of the Booster": "parameters of training and threads",
            "other attributes": "no predict_proba reads them",
        },
    ),
    *_fields(
        "",
        "refused",
        {
            "xgboost: old binary bytes": "xgboost 3 does not read them",
        },
    ),
)


def unknown_field(
    document: Mapping[str, Any],
    fields: Sequence[Field],
    *,
    rename: tuple[str, str] = ("", ""),
) -> tuple[str, str] | None:
    """
    Return the path of a field that is not read, with the reason; None if all are known.

    Args:
        rename: A part of a path, and its replacement in the table.
    """
    known = {one.path: one for one in fields}
    for path in _paths(document, ""):
        general = re.sub(r"\[\d+\]", "[]", path.replace(*rename, 1))
        found = known.get(general) or known.get(f"{general.rpartition('.')[0]}.*")
        if found is None or found.use == "refused":
            why = "" if found is None else found.why
            return path, why or "is a field that this version does not know"
    return None


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            at = f"{path}.{name}" if path else str(name)
            yield at
            yield from _paths(one, at)
    elif isinstance(value, list) and value and isinstance(value[0], (Mapping, list)):
        for number, one in enumerate(value):
            yield from _paths(one, f"{path}[{number}]")


def field_table(fields: Sequence[Field]) -> str:
    """Format fields as the Markdown table of `docs/conversion-formats.md`."""
    rows = [f"| `{one.path}` | {one.use} | {one.why} |" for one in fields]
    return "\n".join(["| field | use | note |", "|---|---|---|", *rows])
