"""Traces: put together from the pieces that Triton writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tollgate.errors import ServerError
from tollgate.server.traces import read_traces


def stamp(number: int, name: str, ns: int) -> dict[str, object]:
    """One moment, as Triton writes it."""
    return {"id": number, "timestamps": [{"name": name, "ns": ns}]}


def head(number: int, model: str, **more: object) -> dict[str, object]:
    """What it writes of a request once."""
    return {"id": number, "model_name": model, "model_version": 1, **more}


def test_pieces_become_requests(tmp_path: Path) -> None:
    """Over several files, in any order; a step without its ensemble is left out."""
    one, two = tmp_path / "trace.json.0", tmp_path / "trace.json.1"
    pieces = [
        stamp(2, "QUEUE_START", 20),
        head(2, "shop_model", parent_id=1, request_id="r"),
        stamp(1, "REQUEST_START", 10),
        head(9, "shop_model", parent_id=8),
    ]
    one.write_text(json.dumps(pieces))
    later = [head(1, "shop", request_id="r"), stamp(2, "COMPUTE_END", 30)]
    two.write_text(json.dumps(later))
    (found,) = read_traces([one, two])
    assert (found.request_id, found.whole.model) == ("r", "shop")
    assert found.whole.at_ns == {"REQUEST_START": 10}
    assert found.steps["shop_model"].at_ns == {"QUEUE_START": 20, "COMPUTE_END": 30}


def test_a_file_that_is_cut_is_named(tmp_path: Path) -> None:
    """In one line."""
    path = tmp_path / "trace.json.0"
    path.write_text('[{"id": 1,')
    with pytest.raises(ServerError, match=r"trace\.json\.0"):
        read_traces([path])
