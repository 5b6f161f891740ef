"""The replay reads online vectors through the stage that serves them."""

from __future__ import annotations

import polars as pl
import pytest

from tollgate.engine.feature_stage import FeatureStage
from tollgate.errors import StoreError
from tollgate.feature_parity import compare_with_offline
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History, history_of


@pytest.fixture(scope="module")
def history(spec: FeatureSpec, simulated: pl.DataFrame) -> History:
    """Return the first purchases of the simulated history."""
    first = simulated.sort("event_time").head(1_500)
    return history_of(first, spec=spec, source="")


@pytest.mark.parametrize("batch_rows", [37, 1_000])
def test_every_vector_is_read_and_equal(
    spec: FeatureSpec, history: History, store_url: str, batch_rows: int
) -> None:
    """Batches may exceed the 32 rows of a server."""
    found = compare_with_offline(
        spec, history, (), read_from_us=0, store_url=store_url, batch_rows=batch_rows
    )
    assert (found.read, found.differing, found.late) == (1_500, 0, 0)


def test_a_wrong_bit_of_the_stage_is_found(
    spec: FeatureSpec,
    history: History,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One number of one row of each batch is changed after the stage."""
    score, batches = FeatureStage.score, []

    def wrong(*args: object, **kwargs: object) -> object:
        features, context = score(*args, **kwargs)  # type: ignore[arg-type]
        features.view("u4")[-1, 0] ^= 1
        batches.append(len(features))
        return features, context

    monkeypatch.setattr(FeatureStage, "score", wrong)
    found = compare_with_offline(
        spec, history, (), read_from_us=0, store_url=store_url, batch_rows=100
    )
    assert found.differing == len(batches) > 10


def test_a_store_that_is_down_is_an_error(spec: FeatureSpec, history: History) -> None:
    """The stage falls back to defaults; a replay must not compare those."""
    nowhere = "unix:///nowhere/redis.sock"
    with pytest.raises(StoreError, match="did not answer a batch"):
        compare_with_offline(
            spec, history, (), read_from_us=0, store_url=nowhere, batch_rows=100
        )
