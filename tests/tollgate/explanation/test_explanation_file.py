"""explain.npz comes back as it was written; what is damaged is one clear error."""

import hashlib
import io
import json
import pickle
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tollgate.errors import RepositoryError
from tollgate.explanation import (
    EXPLAIN_FILE,
    Explainer,
    Explanation,
    Linear,
    Trees,
    decode_explanation,
    encode_explanation,
    read_explanation,
)
from tollgate.explanation import explanation_file as explanation_file
from tollgate.explanation.explanation_file import unexplained


@pytest.fixture
def forest():
    """Return two trees: a split by threshold and one by code, and a leaf."""
    return Explanation(
        features=("amount", "land"),
        classes=("good", "bad"),
        link="identity",
        base=np.array([0.5, -0.5]),
        trees=Trees(
            start=np.array([0, 5, 6], dtype=np.int32),
            output=np.array([-1, -1], dtype=np.int32),
            left=np.array([1, -1, 3, -1, -1, -1], dtype=np.int32),
            feature=np.array([0, -1, 1, -1, -1, -1], dtype=np.int32),
            threshold=np.array([0.1, 0, 0, 0, 0, 0], dtype=np.float32),
            missing_left=np.array([True, False, False, False, False, False]),
            by_code=np.array([False, False, True, False, False, False]),
            code_node=np.array([2, 2], dtype=np.int32),
            code=np.array([1, 4], dtype=np.int32),
            cover=np.array([10.0, 4, 6, 2, 4, 7]),
            value=np.array([[0, 0], [1, 2], [0, 0], [3, 4], [5, 6], [7, 8]], float),
            missing=-999.0,
            zero_is_missing=(0,),
            codes_truncate=True,
            codes_exact=True,
        ),
    )


@pytest.fixture
def linear():
    """Return one scaled column."""
    return Explanation(
        features=("amount",),
        classes=(0, 1),
        link="logistic",
        base=np.array([0.25]),
        linear=Linear(
            source=np.array([0], dtype=np.int32),
            slope=np.array([0.5]),
            offset=np.array([1.0]),
            by_category=np.array([False]),
            category=np.array([np.nan]),
            filled=np.array([np.nan]),
            mean=np.array([2.0]),
            coefficient=np.array([[3.0]]),
            from_mean=True,
        ),
    )


def recorded(folder, data):
    """Write the file and a record that names it; its path."""
    path = folder / EXPLAIN_FILE
    path.write_bytes(data)
    named = {EXPLAIN_FILE: hashlib.sha256(data).hexdigest()}
    note(path, json.dumps({"sha256": "0" * 64, "files": named}))
    return path


def note(path, text):
    """Write the record beside a file."""
    path.with_name("artifact.json").write_text(text)


def same(one, other):
    """Compare all fields of two values, arrays by bits."""
    if isinstance(one, msgspec.Struct):
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name))
            for name in one.__struct_fields__
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(
            one, other, equal_nan=one.dtype.kind == "f"
        )
    return one == other


def rewritten(data, **arrays):
    """Return a file with other arrays; None leaves one out."""
    with np.load(io.BytesIO(data)) as archive:
        found = {name: archive[name] for name in archive.files}
    found |= arrays
    file = io.BytesIO()
    np.savez(file, **{name: one for name, one in found.items() if one is not None})
    return file.getvalue()


def header(data, **changes):
    """Return a file with other words in its header."""
    with np.load(io.BytesIO(data)) as archive:
        document = msgspec.json.decode(archive["header"].tobytes())
    text = msgspec.json.encode(document | changes)
    return rewritten(data, header=np.frombuffer(text, dtype=np.uint8))


def refused(data):
    """Return the one line with which a file is refused."""
    with pytest.raises(RepositoryError) as caught:
        decode_explanation(data, source="explain.npz")
    assert str(caught.value).startswith("explain.npz: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["forest", "linear", "none"])
def test_what_is_written_comes_back(kind, request, tmp_path):
    """Every field, bit by bit, and the same bytes each time."""
    given = (
        unexplained("a network mixes them", features=("a", "b"), classes=(0, 1, 2))
        if kind == "none"
        else request.getfixturevalue(kind)
    )
    path = recorded(tmp_path, encode_explanation(given))
    found = read_explanation(path)
    assert same(found, given)
    assert encode_explanation(found) == path.read_bytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.write_bytes(b"x"), "explain.npz: has SHA-256 2d711642b726…"),
        (lambda path: path.unlink(), "explain.npz: cannot be read: No such file"),
        (lambda path: note(path, "{}"), "artifact.json: files: names no explain.npz"),
        (lambda path: note(path, "{"), "artifact.json: Input data was truncated"),
        (lambda path: note(path, '{"files": 1}'), "artifact.json: Expected `object`"),
        (
            lambda path: path.with_name("artifact.json").unlink(),
            "artifact.json: cannot be read: No such file",
        ),
    ],
)
def test_only_the_file_that_the_record_names_is_read(forest, tmp_path, change, words):
    """The trees of another model would give reasons, and wrong ones."""
    path = recorded(tmp_path, encode_explanation(forest))
    change(path)
    with pytest.raises(RepositoryError) as caught:
        read_explanation(path)
    assert str(caught.value).startswith(f"{tmp_path}/{words}")
    assert "\n" not in str(caught.value)


def test_numpy_reads_the_file_without_pickles(forest):
    """Anyone can: plain arrays under their names."""
    file = io.BytesIO(encode_explanation(forest))
    with np.load(file, allow_pickle=False) as archive:
        assert archive["cover"].tolist() == forest.trees.cover.tolist()
        assert b'"features":["amount","land"]' in archive["header"].tobytes()


def test_a_missing_file_is_named(tmp_path):
    """The path and what the system says."""
    with pytest.raises(RepositoryError, match=r"explain.npz: cannot be read: No such"):
        read_explanation(tmp_path / EXPLAIN_FILE)


def test_every_truncation_is_refused(forest):
    """Cut off anywhere, down to nothing."""
    data = encode_explanation(forest)
    for size in range(0, len(data), 37):
        assert "is damaged" in refused(data[:size])


def test_flipped_bytes_never_pass_as_another_model(forest):
    """Each byte in turn: refused, or the same numbers."""
    data = encode_explanation(forest)
    refusals = 0
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        try:
            found = decode_explanation(bytes(damaged), source="explain.npz")
        except RepositoryError:
            refusals += 1
        else:
            assert same(found, forest)
    assert refusals > len(data) / 2


class Bomb:
    """What a hostile pickle does: write a file where it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_a_pickle_is_never_loaded(forest, tmp_path):
    """Neither as an array of objects nor as a member of its own."""
    trace = tmp_path / "trace"
    data = encode_explanation(forest)
    objects = np.array([Bomb(trace)], dtype=object)
    assert "cover: is object; needed is float64" in refused(
        rewritten(data, cover=objects)
    )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("header.npy", pickle.dumps(Bomb(trace)))
    assert "is damaged" in refused(file.getvalue())
    assert not trace.exists()


def test_a_file_that_unpacks_to_too_much_is_refused(forest, monkeypatch):
    """Before anything of it is unpacked."""
    monkeypatch.setattr(explanation_file, "LARGEST_BYTES", 1000)
    assert "unpacks to" in refused(encode_explanation(forest))


def test_an_array_that_claims_more_than_it_holds_is_refused(forest):
    """No memory is taken for what a header claims."""
    data = encode_explanation(forest)
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for info in old.infolist():
            body = old.read(info)
            if info.filename == "cover.npy":
                assert b"(6,)," in body
                body = body.replace(b"(6,), }          ", b"(99999999999,), }")
            new.writestr(info.filename, body)
    assert "cover: claims [99999999999] and holds 6 numbers" in refused(file.getvalue())


ONES = np.ones(6, dtype=bool)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"cover": None}, "holds ["),
        ({"extra": np.zeros(1)}, "holds ["),
        ({"header": None}, "header: is missing"),
        ({"header": np.zeros(2, np.uint8)}, "is damaged"),
        ({"base": np.zeros(3)}, "base: is [3]; needed is [2]"),
        ({"base": np.array([0, np.nan])}, "base: is not finite"),
        ({"start": np.array([0, 5], np.int32)}, "start: is [2]; needed is [3]"),
        ({"start": np.array([0, 7, 6], np.int32)}, "start: does not ascend"),
        ({"start": np.array([0, 6, 6], np.int32)}, "start: does not ascend"),
        ({"left": np.array([0, -1, 3, -1, -1, -1], np.int32)}, "left: leads out"),
        ({"left": np.array([1, -1, 4, -1, -1, -1], np.int32)}, "left: leads out"),
        ({"left": np.array([1, -1, 1, -1, -1, -1], np.int32)}, "left: leads out"),
        ({"left": np.array([3, -1, 3, -1, -1, -1], np.int32)}, "left: leaves a node"),
        ({"left": np.array([1, -2, 3, -1, -1, -1], np.int32)}, "left: leads out"),
        ({"feature": np.array([2, -1, 1, -1, -1, -1], np.int32)}, "feature: is none"),
        ({"feature": np.array([0, -1, -1, -1, -1, -1], np.int32)}, "feature: is none"),
        ({"feature": np.array([0, 1, 1, -1, -1, -1], np.int32)}, "feature: is none"),
        ({"threshold": np.full(6, np.nan, np.float32)}, "threshold: is NaN"),
        ({"threshold": np.zeros(6)}, "threshold: is float64; needed is float32"),
        ({"cover": np.array([1, 1, 1, -1, 1, 1.0])}, "cover: is negative"),
        ({"cover": np.full(6, np.inf)}, "cover: is not finite"),
        ({"value": np.full((6, 2), np.nan)}, "value: is not finite"),
        ({"value": np.zeros((6, 1))}, "value: is [6, 1]; needed is [6, 2]"),
        ({"output": np.array([-1, 0], np.int32)}, "output: is -1 for some"),
        ({"output": np.array([0, 2], np.int32)}, "output: is none of the 2"),
        ({"by_code": ONES}, "by_code: is set at leaf"),
        ({"code_node": np.array([1, 2], np.int32)}, "code_node: is no split"),
        ({"code_node": np.array([2, 9], np.int32)}, "code_node: is no split"),
        ({"code": np.array([4, 1], np.int32)}, "code: is negative, too large, or out"),
        ({"code": np.array([-1, 1], np.int32)}, "code: is negative"),
        ({"code": np.array([1], np.int32)}, "code: is [1]; needed is [2]"),
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_are_refused(forest, arrays, words):
    """The line names the array."""
    assert words in refused(rewritten(encode_explanation(forest), **arrays))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version: is 2; 1 is read"),
        ({"kind": "magic"}, "is damaged: Invalid enum value 'magic'"),
        ({"kind": "linear"}, "holds ["),
        ({"features": []}, "features: are none"),
        ({"classes": [1]}, "classes: are 1"),
        ({"classes": [1, 2, 3], "link": "logistic"}, "link: is logistic for 3"),
        ({"link": "logistic"}, "base: is [2]; needed is [1]"),
        ({"reason": "none"}, "reason: stands next to a model"),
        ({"zero_is_missing": [2]}, "zero_is_missing: is none of the 2"),
        ({"unknown": 1}, "is damaged: Object contains unknown field"),
    ],
    ids=str,
)
def test_headers_that_do_not_fit_are_refused(forest, changes, words):
    """The line names the field."""
    assert words in refused(header(encode_explanation(forest), **changes))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"source": np.array([1], np.int32)}, "source: is none of the 1"),
        ({"source": np.array([-1], np.int32)}, "source: is none of the 1"),
        ({"mean": np.array([np.nan])}, "mean: is not finite"),
        ({"coefficient": np.zeros((1, 2))}, "coefficient: is [1, 2]; needed is [1, 1]"),
        ({"category": np.zeros(2)}, "category: is [2]; needed is [1]"),
        ({"slope": np.array([np.inf])}, "slope: is not finite"),
    ],
    ids=str,
)
def test_coefficients_that_do_not_fit_are_refused(linear, arrays, words):
    """The line names the array."""
    assert words in refused(rewritten(encode_explanation(linear), **arrays))


def test_without_a_model_there_is_a_reason(linear):
    """Neither both nor none."""
    data = encode_explanation(unexplained("a network", features=("a",), classes=(0, 1)))
    assert "reason: stands next to a model, or is missing" in refused(
        header(data, reason="")
    )


def test_a_model_that_was_read_explains_as_the_one_written(forest):
    """What is computed from the file is computed from the model."""
    rows = np.array([[0.05, 1], [5, 4], [-999, 0], [0, np.nan]], dtype=np.float32)
    found = decode_explanation(encode_explanation(forest), source="explain.npz")
    assert np.array_equal(
        Explainer(found).contributions(rows), Explainer(forest).contributions(rows)
    )
