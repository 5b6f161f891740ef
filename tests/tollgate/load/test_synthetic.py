"""Purchases that nobody made: what the product takes, and the same for a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tritonclient.grpc.service_pb2 import ModelInferRequest

from tests.support.products.small_shop import write_shop
from tollgate.features.spec.feature_spec import all_fields, load_spec, wire_inputs
from tollgate.load.synthetic import synthetic_purchases, synthetic_requests
from tollgate.validation import check_fields, check_rows
from tollgate_client.inputs import check_columns

SPEC = """
version: 1
product: shop
entities: {customer: {key: customer_id}}
fields:
  - {name: items,   type: number, decimals: 1, range: [0.5, 9]}
  - {name: channel, type: category, vocabulary: [web, app]}
features:
  - {name: n, entity: customer, aggregate: count, window: 1d}
  - {name: items, field: items}
  - {name: channel, category: channel}
"""
NOW_US = 1_700_000_000_000_000


def test_every_row_is_a_good_one(tmp_path: Path) -> None:
    """By the checks of client and server; a few fields are missing."""
    path = tmp_path / "features.yaml"
    path.write_text(SPEC)
    spec = load_spec(path)
    columns = synthetic_purchases(spec, 500, seed=1, first_us=NOW_US)
    rows = check_columns(columns, inputs=wire_inputs(spec), fields=all_fields(spec))
    ids = {name: [one.encode() for one in columns[name]] for name in spec.id_names}
    checked = check_rows(
        ids,
        amount=np.array(columns["amount"]),
        time_us=np.array(columns["event_time"]),
        now_us=NOW_US,
    )
    sent = {
        "items": np.array(columns["items"]),
        "channel": np.array([one.encode() for one in columns["channel"]]),
    }
    assert (rows.count, checked.errors) == (500, {})
    assert check_fields(spec.fields, sent)[1] == {}
    assert len(set(columns["transaction_id"])) == 500
    assert set(columns["channel"]) == {"web", "app", ""}
    assert 0 < np.isnan(columns["items"]).sum() < 50
    again = synthetic_purchases(spec, 500, seed=1, first_us=NOW_US)
    assert again["customer_id"] == columns["customer_id"]
    assert (
        synthetic_purchases(spec, 500, seed=2, first_us=NOW_US)
        != columns["customer_id"]
    )


def test_a_product_that_ranks_gets_its_own_inputs(tmp_path: Path) -> None:
    """The id is `request_id`, and no field of an event is sent."""
    spec = write_shop(tmp_path)
    requests = synthetic_requests(
        spec, 3, product="shop", rows=2, seed=1, dry_run=True, deadline_s=1
    )
    sent = ModelInferRequest.FromString(requests[0])
    names = {one.name for one in sent.inputs}
    assert names == {"request_id", "user_id", "event_time", "slot"}
    assert [list(one.shape) for one in sent.inputs] == [[2, 1]] * 4
