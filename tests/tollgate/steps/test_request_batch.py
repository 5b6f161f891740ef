"""Request tensors as one batch: optional inputs, dry runs, parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tollgate.engine.row_batches import (
    Batch,
    dry_spans,
    groups,
    one_request,
    rejected_requests,
)
from tollgate.features.fields import hash_words
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.schema import Degraded
from tollgate.steps.request_batch import read_batch
from tollgate.steps.triton import inputs_of

pytestmark = pytest.mark.usefixtures("both_packers")

NOW_US = 1_700_000_000_000_000
SPEC = """\
version: 1
product: shop
entities: {customer: {key: customer_id}}
fields:
  - {name: items, type: number, range: [0, 10]}
  - {name: channel, type: category, vocabulary: [web]}
features:
  - {name: items_1d, entity: customer, aggregate: sum, of: items, window: 1d}
  - {name: channel, category: channel}
"""


class Tensor:
    """An input of a request, with as much of Triton's as a step asks for."""

    def __init__(self, name: str, values: list[Any], dtype: Any) -> None:
        self._name = name
        self._array = np.array(values, dtype)[:, None]

    def name(self) -> str:
        """Its name."""
        return self._name

    def as_numpy(self) -> np.ndarray:
        """Its values; [N, 1]."""
        return self._array

    def shape(self) -> tuple[int, ...]:
        """Their shape."""
        return self._array.shape


class Request:
    """A request of purchases with the ids given, and declared fields."""

    def __init__(
        self, *ids: bytes, parameters: Any = None, **fields: list[Any]
    ) -> None:
        count = len(ids)
        kinds = {"items": np.float64, "channel": np.object_}
        self._inputs = [
            Tensor("transaction_id", list(ids), np.object_),
            Tensor("customer_id", [b"c"] * count, np.object_),
            Tensor("amount", [1.0] * count, np.float64),
            Tensor("event_time", [NOW_US] * count, np.int64),
            *(Tensor(name, values, kinds[name]) for name, values in fields.items()),
        ]
        self._parameters = json.dumps(parameters or {})

    def inputs(self) -> list[Tensor]:
        """Its tensors."""
        return self._inputs

    def parameters(self) -> str:
        """Its parameters, as Triton writes them."""
        return self._parameters


@pytest.fixture
def spec(tmp_path: Path) -> FeatureSpec:
    """A product with two declared fields."""
    path = tmp_path / "features.yaml"
    path.write_text(SPEC)
    return load_spec(path)


def gathered(spec: FeatureSpec, *requests: Request) -> Batch:
    """Gather a dynamic batch."""
    return read_batch(requests, inputs_of(requests), spec=spec, now_us=NOW_US)


def test_requests_with_and_without_fields_are_one_batch(spec: FeatureSpec) -> None:
    """What a request or a row lacks is missing, and has its bit."""
    batch = gathered(
        spec,
        Request(b"1", b"2", items=[3.0, np.nan], channel=[b"web", b"web"]),
        Request(b"3"),
        Request(b"4", b"5", channel=[b"", b"fax"], items=[0.0, 10.0]),
    )
    web, fax = hash_words([b"web", b"fax"]).tolist()
    assert batch.fields["items"].tolist() == [3, MISSING, MISSING, 0, 10]
    assert batch.fields["channel"].tolist() == [web, web, MISSING, MISSING, fax]
    bit = Degraded.FIELD_MISSING
    assert np.asarray(batch.degraded).tolist() == [0, bit, bit, bit, bit]
    assert not batch.errors


def test_field_no_request_has_is_no_column(spec: FeatureSpec) -> None:
    """Nothing is made up for it before the store needs it."""
    batch = gathered(spec, Request(b"1"), Request(b"2"))
    assert batch.fields == {}
    assert (np.asarray(batch.degraded) == Degraded.FIELD_MISSING).all()


def test_product_without_fields_has_no_bits(tmp_path: Path, spec: FeatureSpec) -> None:
    """Not an array per batch either."""
    path = tmp_path / "features.yaml"
    path.write_text(
        "version: 1\nproduct: shop\nentities: {customer: {key: customer_id}}\n"
        "features: [{name: n, entity: customer, aggregate: count, window: 1d}]\n"
    )
    batch = gathered(load_spec(path), Request(b"1", items=[3.0]))
    assert (batch.fields, batch.degraded) == ({}, 0)


def test_bad_field_is_its_own_rows_error(spec: FeatureSpec) -> None:
    """Named like any other; a request of bad rows only is hopeless."""
    batch = gathered(
        spec,
        Request(b"1", b"2", items=[11.0, 1.0], channel=[b"web", b"\xff"]),
        Request(b"3", items=[-1.0]),
    )
    assert batch.errors == {
        0: "items: 11.0: is not within 0 … 10",
        1: 'channel: "\\xff": is not UTF-8',
        2: "items: -1.0: is not within 0 … 10",
    }
    assert [at for at, _ in rejected_requests(batch)] == [0, 1]


def test_each_dry_request_is_a_group_with_its_fields(spec: FeatureSpec) -> None:
    """Those that write go together; bad rows go nowhere."""
    batch = gathered(
        spec,
        Request(b"1", b"", items=[1.0, 2.0]),
        Request(b"2", b"3", items=[3.0, 4.0], parameters={"dry_run": True}),
        Request(b"4"),
        Request(b"5", items=[6.0], parameters={"dry_run": True}),
    )
    assert dry_spans(batch) == [slice(2, 4), slice(5, 6)]
    found = groups(batch)
    assert [(one.rows.tolist(), one.dry) for one in found] == [
        ([0, 4], False),
        ([2, 3], True),
        ([5], True),
    ]
    items = [one.purchases.fields["items"].tolist() for one in found]
    assert items == [[1, MISSING], [3, 4], [6]]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"dry_run": "yes"}, "dry_run: 'yes': is neither true nor false"),
        ({"deadline_us": "soon"}, "deadline_us: 'soon': is not whole microseconds"),
        ({"deadline_us": 0}, "deadline_us: no time left"),
        *(
            (
                {"store_deadline_ms": one},
                f"store_deadline_ms: {one!r}: is not whole milliseconds above 0",
            )
            for one in (0, -1, True, 2.5, "soon", None)
        ),
    ],
)
def test_malformed_parameters_cost_their_own_request_only(
    spec: FeatureSpec, parameters: dict[str, Any], words: str
) -> None:
    """The rows of the other are good."""
    batch = gathered(spec, Request(b"1", b"2", parameters=parameters), Request(b"3"))
    assert batch.errors == {0: words, 1: words}


def test_each_request_says_how_long_the_store_may_take(spec: FeatureSpec) -> None:
    """One that does not say has 0; where none says, there is no list."""
    slow = Request(b"1", b"2", parameters={"store_deadline_ms": 700})
    batch = gathered(spec, Request(b"0"), slow, Request(b"3"))
    assert list(batch.store_deadline_ms) == [0, 700, 0]
    assert batch.errors == {}
    assert not gathered(spec, Request(b"0"), Request(b"3")).store_deadline_ms
    alone = one_request(batch, 1)
    assert (alone.ids["transaction_id"], alone.bounds) == ([b"1", b"2"], [0, 2])


@pytest.mark.parametrize(
    ("came_s_ago", "late"),
    [("0.049", False), ("0.051", True), ("-1", False), ("11", False), ("nan", False)],
)
def test_time_since_the_gateway_is_taken_off_the_deadline(
    spec: FeatureSpec, came_s_ago: str, late: bool
) -> None:
    """Unless it is what no clock of the same time can tell."""
    came = str(NOW_US / 1e6 - float(came_s_ago))
    parameters = {"deadline_us": 50_000, "tollgate-arrived": came}
    batch = gathered(spec, Request(b"1", parameters=parameters), Request(b"2"))
    assert batch.errors == ({0: "deadline_us: no time left"} if late else {})


@pytest.mark.parametrize(
    "parameters",
    [
        {"tollgate-arrived": "1699999999.9"},
        {"deadline_us": 1, "tollgate-arrived": "then"},
        {"deadline_us": 1, "tollgate-arrived": None},
    ],
)
def test_who_gives_no_deadline_or_no_time_is_not_late(
    spec: FeatureSpec, parameters: dict[str, Any]
) -> None:
    """Both are needed."""
    assert not gathered(spec, Request(b"1", parameters=parameters)).errors
