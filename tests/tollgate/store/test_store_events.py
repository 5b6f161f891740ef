"""Packing of events: keys, groups and entries."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import ENTRY, hash_ids
from tollgate.store.store_events import (
    Labels,
    Packer,
    Purchases,
    label_entries,
    purchase_entries,
)

pytestmark = pytest.mark.usefixtures("both_packers")


@pytest.fixture
def batch() -> Purchases:
    """Five purchases of two customers at three terminals."""
    return Purchases(
        transaction_id=[b"1", b"2", b"3", b"4", b"5"],
        entity_id=[
            [b"c", b"d", b"c", b"c", b"d"],
            [b"t", b"t", b"u", b"v", b"u"],
        ],
        event_time_us=np.arange(5) + 1_600_000_000_000_000,
        cents=np.array([0, 1, 2, 999_999_999, 1_000_000_000]),
    )


def test_keys_carry_product_state_and_entity(spec: FeatureSpec) -> None:
    """One prefix per product, state and kind of entity, then the id as it is."""
    key = Packer(spec).key(1, "é 1".encode())
    assert key == b"tollgate:fraud:%016x:terminal:\xc3\xa9 1" % spec.state_hash


def test_each_entity_is_one_key_with_its_events(
    spec: FeatureSpec, batch: Purchases
) -> None:
    """Keys in order of first sight; events grouped by key, in order of the batch."""
    packer = Packer(spec)
    call = packer.pack(purchase_entries(batch), batch.entity_id)
    wanted = [(0, b"c"), (0, b"d"), (1, b"t"), (1, b"u"), (1, b"v")]
    assert call.keys == [packer.key(*one) for one in wanted]
    assert call.first_key == [0, 2, 5]
    assert [one.tolist() for one in call.code] == [[0, 1, 0, 0, 1], [0, 0, 1, 2, 1]]
    events = np.frombuffer(call.events, ENTRY)
    numbers = (events["time_us"] - 1_600_000_000_000_000 + 1).tolist()
    assert numbers == [1, 3, 4, 2, 5, 1, 2, 3, 5, 4]
    settings = np.frombuffer(call.arguments, "<i8,<u4,<u4,<u4,<u4")
    assert settings["f3"].tolist() == [3, 2, 2, 2, 1]
    customer, terminal = spec.entities
    assert (
        settings["f0"].tolist() == [customer.horizon_us] * 2 + [terminal.horizon_us] * 3
    )
    assert set(settings["f1"].tolist()) == {1024}


def test_purchase_keeps_every_cent(batch: Purchases) -> None:
    """The largest amount fits; a purchase is no label."""
    entries = purchase_entries(batch)
    assert entries["cents"].tolist() == batch.cents.tolist()
    assert set(entries["flags"].tolist()) == {1}
    assert entries["id_hash"].tolist() == hash_ids(batch.transaction_id).tolist()


def test_entries_of_another_layout_are_not_packed(
    spec: FeatureSpec, batch: Purchases
) -> None:
    """np.concatenate turns big-endian fields round: same names, other bytes."""
    entries = purchase_entries(batch)
    joined = np.concatenate([entries[:2], entries[2:]])
    assert joined.dtype.names == ENTRY.names
    packer = Packer(spec)
    for other in (joined, entries[["time_us", "cents"]], entries.view("V48")):
        with pytest.raises(ValueError, match="entries are "):
            packer.pack(other, batch.entity_id)
    again = packer.pack(joined.astype(ENTRY), batch.entity_id)
    assert again.events == packer.pack(entries, batch.entity_id).events


def labels_of(*, label: list[int], revision: list[int]) -> Labels:
    """Labels of three purchases."""
    return Labels(
        transaction_id=[b"1", b"2", b"3"],
        entity_id=[[b"c"] * 3, [b"t"] * 3],
        event_time_us=np.array([5, 6, 7]),
        label=np.array(label, np.int8),
        label_time_us=np.array([8, 9, 10]),
        revision=np.array(revision),
    )


@pytest.mark.parametrize(
    ("label", "revision", "words"),
    [
        ([0, 1, -1], [0, 0, 0], "row 2: label -1 is not 0 … 1"),
        ([0, 2, 1], [0, 0, 0], "row 1: label 2 is not 0 … 1"),
        ([0, 1, 1], [0, -1, 0], "row 1: revision -1 is not 0 … 16777215"),
        ([0, 1, 1], [2**24, 0, 0], "row 0: revision 16777216 is not 0"),
    ],
)
def test_label_or_revision_without_a_place_is_refused(
    label: list[int], revision: list[int], words: str
) -> None:
    """An unknown label is no "not fraud", and a revision must not spill over."""
    with pytest.raises(ValueError, match=words):
        label_entries(labels_of(label=label, revision=revision))


def test_label_keeps_its_revision_and_verdict() -> None:
    """Flags: labelled, fraud where it is, the revision above."""
    entries = label_entries(labels_of(label=[0, 1, 1], revision=[0, 1, 2**24 - 1]))
    assert entries["flags"].tolist() == [2, 6 + 256, 6 + 256 * (2**24 - 1)]
    assert entries["label_time_us"].tolist() == [8, 9, 10]
    assert entries["time_us"].tolist() == [5, 6, 7]
