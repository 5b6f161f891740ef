"""
Change model files and hold what becomes of each against its own numbers.

Each file either converts to what `tests.support.converters.file_arithmetic`
computes from the changed file, or
is refused with a TollgateError. Run many with

    python tests/converters/format_fuzz.py --count 200 --seed 1
"""

from __future__ import annotations

import argparse
import itertools
import json
import pickle
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from converters.parity.proof import prove
from converters.parity.runner import onnx_runner
from converters.sources.files.formats import format_of
from converters.sources.opening import open_source
from converters.sources.worker import open_model
from tests.support.converters.file_arithmetic import (
    lightgbm_probabilities,
    onnx_probabilities,
    xgboost_document,
    xgboost_probabilities,
)
from tollgate.errors import TollgateError

MODELS = Path(__file__).parent / "models"
COLUMNS = 4
AGREES = 1e-5
ODD = (0.1 + 0.2, 1e-40, -0.0, 3.4e38, 1e39, 1e300, float("nan"), float("inf"), -1e-7)
FACTORS = (0.0, 0.5, 2.0, -1.0, 1e-6, 1e6, 1 / 3)


def training_rows(*, seed=0, rows=300):
    """Make features with gaps, zeros and codes, and labels of three classes."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, COLUMNS)).astype(np.float32)
    features[:, 1] = np.round(features[:, 1]).clip(-1, 1)
    features[random.random(features.shape) < 0.1] = np.nan
    features[:, 3] = random.integers(0, 5, rows)
    score = np.nan_to_num(features[:, 0]) + np.isin(features[:, 3], [1, 4])
    return features, np.digitize(score, [0.2, 1.0])


def judged_rows():
    """Return the rows on which file and conversion are compared."""
    rows, _ = training_rows(seed=1, rows=40)
    rows[0] = np.nan
    rows[1] = 0
    rows[2:8, 3] = [5, 6, 31, 32, 63, 64]
    return rows


# Files to change ---------------------------------------------------------------------


def base_files():
    """Train small models; name -> bytes."""
    found = xgboost_files() | lightgbm_files() | onnx_files() | pickle_files()
    for name in ("xgboost_3_4_dart.json", "xgboost_3_4_dart.ubj"):
        found[name] = (MODELS / name).read_bytes()
    return found


def xgboost_files():
    import pandas as pd
    import xgboost

    features, label = training_rows()
    frame = pd.DataFrame(features, columns=list("abcd"))
    words = np.asarray(["ant", "bee", "cat", "dog", "eel"])
    frame["d"] = pd.Categorical(words[features[:, 3].astype(int)])
    plain = {"max_depth": 3, "eta": 0.5, "verbosity": 0, "nthread": 1}
    two, three = {"objective": "binary:logistic"}, {"objective": "multi:softprob"}
    drop = {"booster": "dart", "rate_drop": 0.5, "one_drop": 1}
    forest = {"num_parallel_tree": 3, "subsample": 0.5}
    made = {
        "names.json": (two, frame[list("abc")].join(frame["d"].cat.codes.rename("d"))),
        "words.json": (two | {"max_cat_to_onehot": 1}, frame),
        "multi.ubj": (three | {"num_class": 3}, features),
        "dart.json": (two | drop, features),
        "forest.json": (two | forest, features),
    }
    found = {}
    for name, (parameters, table) in made.items():
        wanted = label if "num_class" in parameters else label > 0
        data = xgboost.DMatrix(table, label=wanted, enable_categorical=True)
        booster = xgboost.train(plain | parameters, data, 3)
        if name == "forest.json":
            booster.set_attr(best_iteration="1")
        found[f"xgboost_{name}"] = bytes(booster.save_raw(name.rpartition(".")[2]))
    return found


def lightgbm_files():
    import lightgbm
    import pandas as pd

    features, label = training_rows()
    frame = pd.DataFrame(features, columns=list("abcd"))
    words = np.asarray(["ant", "bee", "cat", "dog", "eel"])
    frame["d"] = pd.Categorical(words[features[:, 3].astype(int)])
    plain = {"num_leaves": 5, "verbose": -1, "num_threads": 1, "learning_rate": 0.5}
    small = {"min_data_per_group": 1, "cat_smooth": 1, "max_cat_to_onehot": 1}
    forest = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}
    made = {
        "words.txt": ({"objective": "binary", "sigmoid": 2.0} | small, frame),
        "zero.txt": ({"objective": "binary", "zero_as_missing": True}, features),
        "multi.txt": ({"objective": "multiclass", "num_class": 3}, features),
        "forest.txt": ({"objective": "binary"} | forest, features),
        "dart.txt": ({"objective": "binary", "boosting": "dart"}, features),
    }
    found = {}
    for name, (parameters, table) in made.items():
        wanted = label if "num_class" in parameters else (label > 0).astype(int)
        booster = lightgbm.train(
            plain | parameters, lightgbm.Dataset(table, label=wanted), 3
        )
        found[f"lightgbm_{name}"] = booster.model_to_string().encode()
    return found


def onnx_files():
    from skl2onnx import to_onnx
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    features, label = training_rows()
    features = np.nan_to_num(features)
    forest = RandomForestClassifier(n_estimators=3, max_depth=3, random_state=0)
    boosted = GradientBoostingClassifier(n_estimators=3, max_depth=2, random_state=0)
    made = {
        "linear": (LogisticRegression(), label > 0),
        "forest": (forest, label > 0),
        "forest_multi": (forest, label),
        "boosted": (boosted, label > 0),
    }
    found = {}
    for name, (estimator, wanted) in made.items():
        fitted = estimator.fit(features, wanted.astype(int))
        for zipmap in (False, True):
            model = to_onnx(
                fitted,
                features[:1],
                target_opset={"": 15, "ai.onnx.ml": 3},
                options={id(fitted): {"zipmap": zipmap}},
            )
            found[f"onnx_{name}{'_zip' * zipmap}.onnx"] = model.SerializeToString()
    return found


def pickle_files():
    from sklearn.linear_model import LogisticRegression
    from xgboost import XGBClassifier

    features, label = training_rows()
    linear = LogisticRegression().fit(np.nan_to_num(features), label > 0)
    boosted = XGBClassifier(n_estimators=3, max_depth=2, n_jobs=1, missing=0.0)
    return {
        "pickle_linear.pkl": pickle.dumps(linear),
        "pickle_xgboost.pkl": pickle.dumps(boosted.fit(features, label > 0)),
    }


# What a file says --------------------------------------------------------------------


def said(data, rows):
    """Compute the probabilities from a file's own numbers."""
    if data[:1] == b"\x80":
        return pickled_probabilities(pickle.loads(data), rows)
    if data[:1] == b"{":
        return xgboost_probabilities(xgboost_document(data), rows)
    if data[:4] == b"tree":
        return lightgbm_probabilities(
            data.decode(errors="replace").replace("\r\n", "\n"), rows
        )
    graph = onnx.load_from_string(data).graph
    constants = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    return onnx_probabilities(
        graph,
        lambda node: {
            one.name: helper.get_attribute_value(one) for one in node.attribute
        },
        constants,
        rows,
    )


def pickled_probabilities(estimator, rows):
    if hasattr(estimator, "coef_"):
        margins = rows.astype(np.float64) @ estimator.coef_.T + estimator.intercept_
        second = 1 / (1 + np.exp(-margins[:, 0]))
        return np.stack([1 - second, second], axis=1)
    raw = xgboost_document(bytes(estimator.get_booster().save_raw("json")))
    missing = float("nan") if estimator.missing is None else estimator.missing
    rows = np.where(rows == missing, np.nan, rows).astype(np.float32)
    return xgboost_probabilities(raw, rows)


def said_names(data):
    """Read the names of the columns, and of XGBoost the words of each."""
    if data[:1] == b"{":
        learner = xgboost_document(data)["learner"]
        return tuple(learner.get("feature_names", ())) or None
    if data[:4] == b"tree":
        whole = data.decode(errors="replace")
        (line,) = re.findall(r"(?m)^feature_names=(.*)$", whole)
        names = tuple(line.split())
        return None if names[0] == "Column_0" else names
    return None


def said_words(data):
    """Read the words of the last column, in the order of their codes."""
    if data[:1] == b"{":
        booster = xgboost_document(data)["learner"]["gradient_booster"]
        model = booster["gbtree"]["model"] if "gbtree" in booster else booster["model"]
        entries = model.get("cats", {}).get("enc") or [{}]
        body = bytes(entries[-1].get("values", ()))
        ends = entries[-1].get("offsets", ())
        return tuple(body[a:b].decode() for a, b in itertools.pairwise(ends))
    found = re.search(rb"(?m)^pandas_categorical:(.*)$", data)
    listed = json.loads(found[1]) if data[:4] == b"tree" and found else None
    return tuple(listed[-1]) if listed else ()


# Changes -----------------------------------------------------------------------------


def changed(name, data, random):
    """Change a file in one to three places; return what was done, and its bytes."""
    if random.random() < 0.04:
        return "cut off", data[: int(random.integers(1, len(data)))]
    if random.random() < 0.03:
        at = int(random.integers(len(data)))
        return f"byte {at}", data[:at] + bytes([random.integers(256)]) + data[at + 1 :]
    change = {
        "x": changed_xgboost,
        "l": changed_lightgbm,
        "o": changed_onnx,
        "p": changed_pickle,
    }[name[0]]
    return change(data, random)


def pick(random, values):
    return values[int(random.integers(len(values)))]


def changed_number(random, value):
    """Return another number, or something that is none."""
    way = random.integers(8)
    if way < 3 and isinstance(value, (int, float)):
        scaled = value * pick(random, FACTORS)
        return int(scaled) if isinstance(value, int) and way else scaled
    if way < 5:
        return pick(random, ODD)
    if way == 5:
        return str(value)
    if way == 6 and isinstance(value, (int, float)):
        return value + pick(random, (-1, 1, 2))
    return pick(random, (None, True, [], {}, -1, 0, 1, 2**31, 2**63))


def places(value, path=()):
    """Yield every object and list of a document, with its path."""
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        if isinstance(one, (dict, list)):
            yield from places(one, (*path, key))


def changed_xgboost(data, random):
    document = xgboost_document(data)
    done = []
    for _ in range(int(random.integers(1, 3))):
        done.append(pick(random, XGBOOST)(document, random))
    body = json.dumps(document).encode()
    if random.random() < 0.1:
        done.append("a field twice")
        body = body.replace(b'"num_class"', b'"num_class": "0", "num_class"', 1)
    return "; ".join(done), body


def any_field(document, random):
    """Add, rename, remove or change a field anywhere."""
    path, holder = pick(random, list(places(document)))
    where = ".".join(map(str, path))
    if isinstance(holder, list):
        if not holder:
            holder.append(0)
            return f"{where}: an entry"
        at = int(random.integers(len(holder)))
        way = random.integers(4)
        if way == 0:
            del holder[at]
        elif way == 1:
            holder.append(holder[at])
        elif way == 2:
            random.shuffle(holder)
        elif not isinstance(holder[at], (dict, list)):
            holder[at] = changed_number(random, holder[at])
        return f"{where}[{at}]: way {way}"
    name = pick(random, list(holder) or [""])
    way = random.integers(4)
    if way == 0 or not name:
        new = pick(random, ("weight_drop", "scale", "leaf_weights", "x"))
        holder[new] = pick(random, (1, "1", [2.0], {}, [0.5] * 3))
        return f"{where}: new {new}"
    if way == 1:
        holder[f"{name}_2"] = holder.pop(name)
    elif way == 2:
        del holder[name]
    elif isinstance(holder[name], str):
        holder[name] = pick(random, ("0", "1", "2", "x", "-1", "[1E-1]", "1e400", 3))
    elif not isinstance(holder[name], (dict, list)):
        holder[name] = changed_number(random, holder[name])
    return f"{where}.{name}: way {way}"


def parts_of(document):
    learner = document["learner"]
    booster = learner["gradient_booster"]
    model = booster["gbtree"]["model"] if "gbtree" in booster else booster["model"]
    return learner, booster, model


def attempt(change):
    """Let a change do nothing where an earlier one took away what it changes."""

    def made(document, random):
        try:
            return change(document, random)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError):
            return f"{change.__name__}: nothing"

    return made


@attempt
def version(document, random):
    document["version"] = pick(
        random,
        ([1, 0, 0], [2, 1, 0], [3, 4, 9], [3, 5, 0], [4, 0, 0], [0, 9, 0], "3.2"),
    )
    return f"version {document['version']}"


@attempt
def scaled_leaves(document, random):
    _, _, model = parts_of(document)
    factor = pick(random, (*FACTORS, 0.1, 7.3))
    tree = pick(random, model["trees"])
    tree["split_conditions"] = [
        value * factor if left < 0 else value
        for value, left in zip(
            tree["split_conditions"], tree["left_children"], strict=True
        )
    ]
    return f"leaves times {factor}"


@attempt
def odd_threshold(document, random):
    _, _, model = parts_of(document)
    tree = pick(random, model["trees"])
    at = int(random.integers(len(tree["split_conditions"])))
    tree["split_conditions"][at] = pick(random, (*ODD, 0.30000000000000004, "0.5"))
    return f"split_conditions[{at}] = {tree['split_conditions'][at]}"


@attempt
def weights(document, random):
    _, booster, model = parts_of(document)
    factors = [float(pick(random, (0.1, 0.5, 1, 2, -1))) for _ in model["trees"]]
    holder = booster if random.random() < 0.3 else model
    if "weight_drop" in booster and random.random() < 0.7:
        holder = booster
    holder["weight_drop"] = factors[: len(factors) - int(random.random() < 0.2)]
    return f"weight_drop of {len(holder['weight_drop'])}"


@attempt
def base_score(document, random):
    param = document["learner"]["learner_model_param"]
    param["base_score"] = pick(
        random,
        (
            *("0.2", "[0.2]", "[2E-1]", "0", "1", "1.5", "-3", "nan", "0.123456789012"),
            *("[0.1,0.2,0.3]", "[0.1,0.2]", "", "[]", 0.5, [0.5], "5e-1 ", "1e-45"),
        ),
    )
    return f"base_score {param['base_score']!r}"


@attempt
def objective(document, random):
    found = document["learner"]["objective"]
    found["name"] = pick(
        random,
        (
            *("reg:logistic", "binary:logitraw", "multi:softmax", "multi:softprob"),
            *("binary:hinge", "rank:ndcg", "count:poisson", "binary:logistic"),
        ),
    )
    return f"objective {found['name']}"


@attempt
def flags(document, random):
    _, _, model = parts_of(document)
    tree = pick(random, model["trees"])
    tree["default_left"] = [
        pick(random, (0, 1, True, False, 1 - int(one))) for one in tree["default_left"]
    ]
    return "default_left"


@attempt
def categories(document, random):
    _, _, model = parts_of(document)
    tree = pick(random, [one for one in model["trees"] if one["categories"]])
    tree["categories"] = [
        pick(random, (one, 0, 40, 3, -1, 2**24)) for one in tree["categories"]
    ]
    return f"categories {tree['categories']}"


@attempt
def words(document, random):
    _, _, model = parts_of(document)
    entry = model["cats"]["enc"][-1]
    ends = entry["offsets"]
    listed = [bytes(entry["values"][a:b]) for a, b in itertools.pairwise(ends)]
    random.shuffle(listed)
    entry["values"] = list(b"".join(listed))
    entry["offsets"] = [0, *map(int, np.cumsum([len(one) for one in listed]))]
    if random.random() < 0.6:
        order = sorted(range(len(listed)), key=listed.__getitem__)
        model["cats"]["sorted_idx"] = order
    return "words in another order"


@attempt
def names(document, random):
    learner = document["learner"]
    field = pick(random, ("feature_names", "feature_types"))
    random.shuffle(learner[field])
    return f"{field} in another order"


@attempt
def tree_order(document, random):
    _, _, model = parts_of(document)
    order = random.permutation(len(model["trees"]))
    model["trees"] = [model["trees"][at] for at in order]
    if random.random() < 0.5:
        for number, tree in enumerate(model["trees"]):
            tree["id"] = number
    if random.random() < 0.5:
        model["tree_info"] = [model["tree_info"][at] for at in order]
    return "trees in another order"


@attempt
def counts(document, random):
    learner, _, model = parts_of(document)
    number = str(pick(random, (0, 1, 2, 3, 9, -1)))
    holder, name = pick(
        random,
        (
            (model["gbtree_model_param"], "num_trees"),
            (model["gbtree_model_param"], "num_parallel_tree"),
            (learner["attributes"], "best_iteration"),
            (learner["attributes"], "best_ntree_limit"),
            (learner["learner_model_param"], "num_class"),
            (learner["learner_model_param"], "num_feature"),
            (learner["learner_model_param"], "num_target"),
            (pick(random, model["trees"])["tree_param"], "size_leaf_vector"),
        ),
    )
    holder[name] = number
    return f"{name} {number}"


XGBOOST = (
    *(any_field, any_field, any_field, any_field, version, scaled_leaves, weights),
    *(odd_threshold, base_score, objective, flags, categories, words, names),
    *(tree_order, counts, counts),
)


def changed_lightgbm(data, random):
    lines = data.decode().split("\n")
    done = []
    for _ in range(int(random.integers(1, 3))):
        done.append(attempt(pick(random, LIGHTGBM))(lines, random))
    return "; ".join(done), "\n".join(lines).encode()


def any_line(lines, random):
    """Add, rename, remove or repeat a line."""
    at = int(random.integers(len(lines)))
    if random.random() < 0.6:  # not in the long list of parameters
        at = int(random.integers(max(1, lines.index("end of trees"))))
    way = random.integers(5)
    line = lines[at]
    if way == 0:
        lines.insert(
            at, pick(random, ("tree_weights=1 2 3", "scale=2", "average_output"))
        )
    elif way == 1:
        lines[at] = line.replace("=", "_2=", 1)
    elif way == 2:
        del lines[at]
    elif way == 3:
        lines.insert(at, line)
    else:
        lines[at] = line.upper()
    return f"line {line[:30]!r}: way {way}"


def values_line(lines, random):
    """Change the values of a line."""
    found = [at for at, line in enumerate(lines) if re.match(r"[a-z_]+=[-\d]", line)]
    at = pick(random, found)
    name, _, values = lines[at].partition("=")
    parts = values.split()
    spot = int(random.integers(len(parts)))
    way = random.integers(6)
    if way == 0:
        random.shuffle(parts)
    elif way == 1:
        del parts[spot]
    elif way == 2:
        parts.append(parts[spot])
    elif way == 3:
        factor = pick(random, FACTORS)
        parts = [
            repr(float(one) * factor) if "." in one or "e" in one else one
            for one in parts
        ]
    elif way == 4:
        parts[spot] = pick(
            random,
            ("nan", "inf", "1e300", "'1'", "0.30000000000000004", "1_0", "0x10", "-1"),
        )
    else:
        parts[spot] = pick(random, ("0", "1", "2", "3", "5", "9", "10", "12", "16"))
    lines[at] = f"{name}={' '.join(parts)}"
    return f"{name}: way {way}"


def header_line(lines, random):
    """Change what the whole model says."""
    name, value = pick(
        random,
        (
            *(("version", "v5"), ("version", "v3"), ("version", "v2"), ("version", "")),
            *(("num_class", "2"), ("num_class", "3"), ("num_tree_per_iteration", "2")),
            *(("objective", "binary sigmoid:0.5"), ("objective", "binary sigmoid:-1")),
            *(("objective", "binary"), ("objective", "multiclassova num_class:3")),
            *(("objective", "regression"), ("objective", "tweedie"), ("objective", "")),
            *(("objective", "multiclass num_class:3"), ("max_feature_idx", "2")),
            *(("max_feature_idx", "7"), ("label_index", "3"), ("tree_sizes", "10 10")),
            *(("feature_names", "d c b a"), ("monotone_constraints", "1 0 0 0")),
            ("feature_infos", "none none none none"),
        ),
    )
    for at, line in enumerate(lines):
        if line.startswith(f"{name}="):
            lines[at] = f"{name}={value}"
            break
    else:
        lines.insert(2, f"{name}={value}")
    return f"{name}={value}"


def parameter_line(lines, random):
    """Change a parameter of the training, or the words behind it."""
    found = [at for at, line in enumerate(lines) if line.startswith("[")]
    wanted = pick(random, ("sigmoid", "objective", "boosting", "linear_tree", ""))
    at = pick(random, [at for at in found if lines[at].startswith(f"[{wanted}")])
    if random.random() < 0.3:
        for number, line in enumerate(lines):
            if line.startswith("pandas_categorical:["):
                lines[number] = (
                    'pandas_categorical:[["eel", "dog", "cat", "bee", "ant"]]'
                )
        return "words in another order"
    name = lines[at][1:].partition(":")[0]
    lines[at] = f"[{name}: {pick(random, ('1', '0', 'rf', 'gbdt', '3.5', 'binary'))}]"
    return lines[at]


def linear_leaf(lines, random):
    found = [at for at, line in enumerate(lines) if line.startswith("is_linear=")]
    at = pick(random, found)
    lines[at] = f"is_linear={pick(random, ('1', '2', 'true'))}"
    if random.random() < 0.5:
        lines.insert(at, "leaf_const=1 2 3 4 5")
    return lines[at]


LIGHTGBM = (
    *(any_line, any_line, values_line, values_line, values_line, values_line),
    *(header_line, header_line, parameter_line, linear_leaf),
)


def changed_onnx(data, random):
    model = onnx.load_from_string(data)
    done = []
    for _ in range(int(random.integers(1, 3))):
        done.append(attempt(pick(random, ONNX))(model, random))
    body = model.SerializeToString()
    if random.random() < 0.08:
        done.append("an unknown field of the model")
        body += b"\xfa\x3f\x03abc"
    return "; ".join(done), body


def any_attribute(model, random):
    """Add, rename, remove, repeat or change an attribute."""
    node = pick(random, [one for one in model.graph.node if one.attribute])
    one = pick(random, node.attribute)
    way = random.integers(7)
    if way == 0:
        new = pick(random, ("weight_drop", "scale", "nodes_weights", "learning_rate"))
        node.attribute.append(helper.make_attribute(new, [0.5, 0.5]))
        return f"{node.op_type}: new {new}"
    if way == 1:
        one.name += "_2"
    elif way == 2:
        node.attribute.remove(one)
        return f"{node.op_type}: an attribute removed"
    elif way == 3:
        node.attribute.append(one)
    else:
        values = one.floats or one.ints or one.strings
        if not values:
            if one.type == onnx.AttributeProto.STRING:
                kinds = (b"LOGISTIC", b"SOFTMAX", b"NONE", b"PROBIT", b"AVERAGE", b"L2")
                one.s = pick(random, kinds)
            elif one.type == onnx.AttributeProto.INT:
                one.i = int(pick(random, (0, 1, 2, 3, -1)))
            return f"{node.op_type}.{one.name}: another value"
        at = int(random.integers(len(values)))
        if way == 4:
            shuffled = list(values)
            random.shuffle(shuffled)
            del values[:]
            values.extend(shuffled)
        elif way == 5:
            values.append(values[at])
        elif one.floats:
            values[at] = pick(random, (*ODD[:4], *ODD[6:], values[at] * 2))
        elif one.ints:
            values[at] = int(pick(random, (0, 1, 2, 5, -1, 1000)))
        else:
            values[at] = pick(
                random, (b"BRANCH_LT", b"BRANCH_GT", b"LEAF", b"BRANCH_X")
            )
    return f"{node.op_type}.{one.name}: way {way}"


def scaled_floats(model, random):
    """Scale the weights or thresholds of a node, or give the trees a base value."""
    node = pick(random, [one for one in model.graph.node if one.attribute])
    if node.op_type.startswith("Tree") and random.random() < 0.3:
        base = [float(pick(random, (0.1, 0.5, -0.2)))] * int(random.integers(1, 3))
        node.attribute.append(helper.make_attribute("base_values", base))
        return f"base_values {base}"
    found = [one for one in node.attribute if one.floats]
    if not found:
        return "nothing"
    one, factor = pick(random, found), pick(random, FACTORS)
    scaled = [value * factor for value in one.floats]
    del one.floats[:]
    one.floats.extend(scaled)
    return f"{one.name} times {factor}"


def onnx_labels(model, random):
    """Permute the class labels of one operator."""
    for node in model.graph.node:
        for one in node.attribute:
            if one.name.startswith("classlabels") and random.random() < 0.6:
                turned = list(one.ints)[::-1]
                del one.ints[:]
                one.ints.extend(turned)
    return "class labels turned"


def onnx_versions(model, random):
    way = random.integers(5)
    if way == 0:
        model.ir_version = int(pick(random, (0, 2, 3, 8, 10, 13, 20, 99)))
    elif way == 1:
        one = pick(random, model.opset_import)
        one.version = int(pick(random, (1, 3, 5, 9, 15, 21, 30)))
    elif way == 2:
        model.opset_import.append(helper.make_opsetid("com.example", 1))
    elif way == 3:
        model.opset_import.append(pick(random, model.opset_import))
    else:
        del model.opset_import[int(random.integers(len(model.opset_import)))]
    return f"versions: way {way}"


def onnx_nodes(model, random):
    node = pick(random, model.graph.node)
    way = random.integers(5)
    if way == 0:
        node.domain = pick(random, ("com.microsoft", "ai.onnx.ml", "", "example"))
    elif way == 1:
        node.op_type = pick(random, ("Identity", "Normalizer", "Softmax", "TreeX"))
    elif way == 2:
        model.graph.node.remove(node)
    elif way == 3:
        unknown = node.SerializeToString() + b"\xfa\x3f\x03abc"
        node.Clear()
        node.MergeFromString(unknown)
    else:
        model.graph.output.add().CopyFrom(model.graph.output[-1])
    return f"nodes: way {way}"


ONNX = (
    *(any_attribute, any_attribute, any_attribute, scaled_floats, scaled_floats),
    *(onnx_labels, onnx_versions, onnx_nodes),
)


def changed_pickle(data, random):
    model = pickle.loads(data)
    way = random.integers(7)
    linear = hasattr(model, "coef_")
    if way == 0:
        model.weight_drop = [0.5]
    elif way == 1 and linear:
        model.coef_ = model.coef_ * pick(random, FACTORS)
    elif way == 2 and linear:
        model.intercept_ = np.asarray([pick(random, ODD)])
    elif way == 3:
        data = pickle.dumps(model, protocol=2)
        return "an unknown field in the booster", data.replace(
            b"num_parallel_tree", b"num_parallel_tres"
        )
    elif way == 4:
        data = pickle.dumps(model, protocol=2)
        return "versions raised", re.sub(
            rb"(_sklearn_versionq.X.{4})1\.\d", rb"\g<1>9.9", data, flags=re.DOTALL
        )
    elif way == 5:
        name = pick(random, list(vars(model)))
        delattr(model, name)
        return f"{name} removed", pickle.dumps(model)
    elif not linear:
        model.missing = pick(random, (0.0, -1.0, float("nan"), None))
    return f"pickle: way {way}", pickle.dumps(model)


# Judging -----------------------------------------------------------------------------


def outcome(path, rows):
    """
    Convert a file; say `converted`, `refused`, or what is wrong.

    Returns:
        The outcome, and its figures or reason.
    """
    data = path.read_bytes()
    form = ""
    try:
        form = format_of(path)
        if form == "onnx":  # a damaged one may end the process that loads it
            with open_source(path, columns=COLUMNS) as source:
                proven, facts = prove(source, samples=rows, thresholds=(0.5,)), None
        else:
            source = open_model(path, form=form, missing=None)
            proven, facts = prove(source, samples=rows, thresholds=(0.5,)), source.facts
        proven.check()
        found = onnx_runner(proven.model)(rows).astype(np.float64)
    except TollgateError as error:
        line = str(error)
        return ("refused", line) if "\n" not in line else ("many lines", line)
    except Exception as error:  # noqa: BLE001  (this is what is looked for)
        if form == "pickle":  # the process that reads pickles puts it into words
            return "refused", f"cannot be used: {type(error).__name__}"
        return "traceback", traceback.format_exc()
    try:
        with np.errstate(all="ignore"):
            expected = said(data, rows)
    except Exception:  # noqa: BLE001  (counted as an error)
        return "not judged", traceback.format_exc()
    if expected.shape != found.shape:
        return "silent", f"{found.shape} where the file has {expected.shape}"
    delta = float(np.abs(found - expected).max())
    if not delta <= AGREES:
        return "silent", f"differs by {delta:.3g}"
    if facts is None or data[:1] == b"\x80":
        return "converted", f"{delta:.1e}"
    if facts.names != said_names(data):
        return "silent", f"names {facts.names} where the file has {said_names(data)}"
    listed = said_words(data)
    own = facts.categories.get(COLUMNS - 1)
    if listed and (own is None or own.known != listed):
        return "silent", f"words {own} where the file has {listed}"
    return "converted", f"{delta:.1e}"


def fuzz(files, *, count, seed, folder):
    """Change files in turn; yield name, change, outcome and its words."""
    random = np.random.default_rng(seed)
    rows = judged_rows()
    names = sorted(files)
    for number in range(count):
        name = names[number % len(names)]
        done, data = changed(name, files[name], random)
        # Linear models answer no gaps, and forests were trained without.
        plain = name.startswith(("onnx", "pickle_linear"))
        path = folder / f"{number}_{name}"
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind, words = outcome(path, np.nan_to_num(rows) if plain else rows)
        yield path.name, done, kind, words


def main():
    """Print what became of each file, and the counts; exit 1 on a silent error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="write the changed files here")
    asked = parser.parse_args()
    total = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        files = base_files()
        for line in fuzz(files, count=asked.count, seed=asked.seed, folder=folder):
            total[line[2]] += 1
            print(" | ".join(line).rstrip(), flush=True)
    print(dict(total))
    return 0 if set(total) <= {"converted", "refused"} else 1


if __name__ == "__main__":
    sys.exit(main())
