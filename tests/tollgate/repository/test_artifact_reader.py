"""The part of artifact.json that a server needs is read, or refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tollgate.errors import RepositoryError
from tollgate.repository.models.artifact_file import read_artifact

GOOD = {"sha256": "0" * 64, "spec_hash": "0" * 16, "features": ["a", "b"]}


def test_what_a_server_needs_is_read_and_the_rest_skipped(tmp_path: Path) -> None:
    """Other fields belong to the converters."""
    (tmp_path / "artifact.json").write_text(json.dumps(GOOD | {"opset": 15}))
    assert read_artifact(tmp_path).features == ("a", "b")


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
