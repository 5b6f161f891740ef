"""Two specs compared: what differs, whether the state does, and what it asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.features.spec.description import (
    Comparison,
    compare,
    duration_text,
    feature_text,
    state_text,
    window_text,
)
from tollgate.features.spec.feature_spec import load_spec
from tollgate.features.spec.spec_definition import FeatureSpec

SMALL = """\
version: 1
product: shop
entities:
  customer: {key: customer_id}
  terminal: {key: terminal_id, delay: 7d}
fields:
  - {name: channel, type: category, vocabulary: [web, app]}
features:
  - {name: amount, field: amount}
  - {name: channel, category: channel}
  - {name: n_1d, entity: customer, aggregate: count, window: 1d}
  - {name: n_90m, entity: customer, aggregate: count, window: 90m}
  - {name: risk, entity: terminal, aggregate: share, window: 30d}
  - {name: rush, rate_of_change: [n_90m, n_1d], range: [0, 16]}
"""


def loaded(folder: Path, *changes: tuple[str, str]) -> FeatureSpec:
    """Load the small spec with texts replaced."""
    text = SMALL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "features.yaml"
    path.write_text(text)
    return load_spec(path)


def compared(folder: Path, *changes: tuple[str, str]) -> Comparison:
    """Compare the small spec with a changed one."""
    return compare(loaded(folder), loaded(folder, *changes))


def rows(found: Comparison) -> list[tuple[str, str, str, str]]:
    """Write changes as (feature, what, kind, details)."""
    return [
        (one.feature, one.what, one.kind, "; ".join(one.details))
        for one in found.changes
    ]


def test_equal_specs_have_no_change(tmp_path: Path) -> None:
    """A comment is none."""
    found = compared(tmp_path, ("version: 1", "# new\nversion: 1"))
    assert found == Comparison((), (), same_state=True, same_vector=True)


RISK = "  - {name: risk, entity: terminal, aggregate: share, window: 30d}\n"
DEVICE = "  - {name: apps, entity: customer, aggregate: distinct, of: channel, window"


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("window: 90m", "window: 2h", ("n_90m", "changed", "window: 90m → 2h")),
        (
            "[web, app]",
            "[web, app, fax]",
            ("channel", "changed", "app → web, app, fax"),
        ),
        ("[0, 16]", "[0, 12]", ("rush", "changed", "range: 0 … 16 → 0 … 12")),
        ("amount, f", "paid, f", ("paid", "added", "")),
        ("amount, field: amount", "amount, calendar: night", ("amount", "changed", "")),
    ],
)
def test_change_of_the_vector_is_compatible(
    tmp_path: Path, old: str, new: str, wanted: tuple[str, str, str]
) -> None:
    """The state is the same: one read serves both."""
    found = compared(tmp_path, (old, new))
    feature, what, details = wanted
    change = next(one for one in found.changes if one.feature == feature)
    assert (change.what, change.kind) == (what, "vector")
    assert details in "; ".join(change.details)
    assert (found.same_state, found.same_vector, found.state) == (True, False, ())


def test_longer_window_and_new_column_are_changes_of_state(tmp_path: Path) -> None:
    """Named with the entity; a derived feature hangs on what its inputs need."""
    found = compared(
        tmp_path, ("window: 1d", "window: 60d"), (RISK, f"{RISK}{DEVICE}: 1d}}\n")
    )
    assert rows(found) == [
        ("n_1d", "changed", "state", "window: 1d → 60d"),
        ("apps", "added", "state", ""),
    ]
    assert found.state == (
        "customer: retained for: 2d → 61d",
        "customer: columns: none → channel:category:0",
    )
    assert not found.same_state


def test_a_hop_changes_the_state_and_names_the_rounding(tmp_path: Path) -> None:
    """Each feature of the entity counts other purchases, so a model must learn them."""
    hop = ("terminal_id, delay: 7d", "terminal_id, delay: 7d, hop: 1h")
    found = compared(tmp_path, hop)
    rounding = "begin rounded down to 1d, end to 1h"
    assert rows(found) == [("risk", "changed", "state", f"rounding: none → {rounding}")]
    assert found.state == (
        "terminal: retained for: 38d → 39d",
        "terminal: cap: 1024 → 15",
        "terminal: hop: 0 → tiles of 1h, 1d",
    )
    spec = loaded(tmp_path, hop)
    risk = spec.features[spec.feature_names.index("risk")]
    assert window_text(risk, spec) == f"30d, until 7d before; {rounding}"


def test_bits_alone_are_no_vector(tmp_path: Path) -> None:
    """`essential` and `max_age` change what the answer says of the same numbers."""
    found = compared(tmp_path, ("window: 30d", "window: 30d, essential: true"))
    assert rows(found) == [("risk", "changed", "bits", "essential: none → yes")]
    assert found.same_vector


def test_another_order_is_another_vector(tmp_path: Path) -> None:
    """Two that changed places are named with both."""
    first, second = SMALL.splitlines(keepends=True)[8:10]
    found = compared(tmp_path, (first + second, second + first))
    assert rows(found) == [
        ("channel", "moved", "vector", "2 → 1 of 6 common ones"),
        ("amount", "moved", "vector", "1 → 2 of 6 common ones"),
    ]


def test_another_product_or_entity_is_another_state(tmp_path: Path) -> None:
    """What is stored under one key is not found under another."""
    found = compared(tmp_path, ("product: shop", "product: store"))
    assert not found.same_state
    assert found.state == ("customer: under another key", "terminal: under another key")
    gone = compared(
        tmp_path,
        (RISK, ""),
        ("  terminal: {key: terminal_id, delay: 7d}\n", ""),
    )
    assert rows(gone) == [("risk", "removed", "state", "")]
    assert gone.state == ("terminal: no longer stored",)


def test_words_for_people(tmp_path: Path) -> None:
    """Definition, window and state of features, as the catalogue shows them."""
    spec = loaded(tmp_path)
    words = {one.name: feature_text(one, spec) for one in spec.features}
    assert words["channel"].startswith("place of channel among web, app, from 0; -1 ")
    assert words["risk"] == "purchases known as fraud / purchases, of the terminal"
    assert words["rush"] == (
        "n_90m / n_1d, each for an equal time (· 16); within 0 … 16"
    )
    windows = {one.name: window_text(one, spec) for one in spec.features}
    assert windows["risk"] == "30d, until 7d before"
    assert (windows["amount"], windows["n_90m"]) == ("", "90m")
    assert state_text(spec.entities[1]) == "terminal: 48 bytes a purchase, for 38d"
    assert [duration_text(us) for us in (0, 1_000_000, 90_000_000)] == [
        "0s",
        "1s",
        "90s",
    ]
