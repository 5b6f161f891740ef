"""One schema of artifact.json serves every reader, each with the fields it needs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tollgate.errors import RepositoryError
from tollgate.repository.models.artifact_file import (
    Artifact,
    decode_training,
    read_artifact,
)

GOOD = {"sha256": "0" * 64, "spec_hash": "0" * 16, "features": ["a", "b"]}


def test_what_a_server_needs_is_read_and_the_rest_skipped(tmp_path: Path) -> None:
    """A server checks no field that only converters and people read."""
    more = {"opset": 15, "source": "a text", "training": 3}
    (tmp_path / "artifact.json").write_text(json.dumps(GOOD | more))
    found = read_artifact(tmp_path)
    assert found.features == ("a", "b")
    assert (found.source, found.training) == (None, None)


def test_the_training_rows_are_read_without_the_rest() -> None:
    """The oldest records have null for an infinite quantile."""
    record = {
        "sha256": 7,
        "training": {"quantiles": [0, 1], "features": {"a": {"quantiles": [1, None]}}},
    }
    found = decode_training(json.dumps(record).encode())
    assert found is not None
    assert found.features["a"].quantiles == (1.0, None)
    assert decode_training(b"{}") is None
    with pytest.raises(msgspec.ValidationError, match=r"\$\.training\.rows"):
        decode_training(b'{"training": {"rows": "many"}}')


def test_keys_are_written_in_their_order() -> None:
    """People compare records line by line; programs find each key by its name."""
    record = Artifact(sha256="0" * 64, spec_hash=None, features=())
    assert list(json.loads(msgspec.json.encode(record))) == [
        *("sha256", "spec_hash", "features", "source", "graph", "parity", "training"),
        *("created", "targets", "categories", "us_per_row", "allowed", "trades"),
        *("parity_of", "files", "oracle", "made_from", "calibration"),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spec_hash": None}, "spec_hash: is null: convert the model for a product"),
        ({"spec_hash": "zz"}, "spec_hash"),
        ({"features": None}, "features"),
    ],
)
def test_a_wrong_field_is_named(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    """A model converted for no product in particular says what to do."""
    (tmp_path / "artifact.json").write_text(json.dumps(GOOD | change))
    with pytest.raises(RepositoryError, match=r"artifact\.json: ") as caught:
        read_artifact(tmp_path)
    assert words in str(caught.value)
