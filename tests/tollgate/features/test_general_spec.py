"""The general keys of features.yaml: what they become, and how they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import SpecError
from tollgate.features.spec.description import needed_entities
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec

SMALL = """\
version: 1
product: shop
entities:
  customer: {key: customer_id}
  terminal: {key: terminal_id, delay: 7d}
fields:
  - {name: items, type: number, decimals: 2, range: [0, 50]}
  - {name: channel, type: category, vocabulary: [web, app]}
  - {name: device, type: category}
feeds: {purchases: {max_age: 10m}, labels: {max_age: 2d}}
features:
  - {name: amount, field: amount}
  - {name: items, field: items, default: 1, range: [0, 9]}
  - {name: channel, category: channel, essential: true}
  - {name: n_1h, entity: customer, aggregate: count, window: 1h}
  - {name: n_1d, entity: customer, aggregate: count, window: 1d, max_age: 10m}
  - {name: items_1d, entity: customer, aggregate: sum, of: items, window: 1d}
  - {name: devices, entity: customer, aggregate: distinct, of: device, window: 30d}
  - {name: shops, entity: customer, aggregate: distinct, of: terminal_id, window: 1d}
  - {name: gap, time_since_last: customer, window: 7d, default: 604800}
  - {name: risk, entity: terminal, aggregate: share, window: 30d}
  - {name: per_item, ratio: [amount, items]}
  - {name: rush, rate_of_change: [n_1h, n_1d]}
  - {name: more, difference: [n_1d, n_1h]}
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


def test_entities_keep_what_their_features_are_made_of(tmp_path: Path) -> None:
    """Fields and other entities' keys, by name; nothing for what entries have."""
    spec = loaded(tmp_path)
    customer, terminal = spec.entities
    assert customer.columns == ("device", "items", "terminal_id")
    assert terminal.columns == ()
    assert [one / 3_600_000_000 for one in customer.windows_us] == [1, 24, 168, 720]
    assert spec.feeds == {"purchases": 600_000_000, "labels": 172_800_000_000}


def test_a_field_for_the_policy_is_declared_as_such(tmp_path: Path) -> None:
    """It is another spec; one without such fields has the hash that it had."""
    consent = "  - {name: consent, type: category, use: policy}\nfeeds: "
    before, after = loaded(tmp_path), loaded(tmp_path, ("feeds: ", consent))
    assert [one.use for one in after.fields] == ["features"] * 3 + ["policy"]
    assert before.spec_hash == 0xE9FA0BCA39740D6E != after.spec_hash
    assert before.state_hash == after.state_hash


def test_fields_are_scaled_and_features_linked(tmp_path: Path) -> None:
    """Ranges in the last decimal; inputs by place; a rate's scale is long / short."""
    spec = loaded(tmp_path)
    items = spec.field("items")
    assert (items.low, items.high, items.decimals) == (0, 5000, 2)
    by_name = {one.name: one for one in spec.features}
    assert by_name["per_item"].inputs == (0, 1)
    assert (by_name["rush"].inputs, by_name["rush"].scale) == ((3, 4), 24.0)
    assert by_name["gap"].aggregate == "time_since_last"
    assert by_name["channel"].essential
    assert by_name["n_1d"].max_age_us == 600_000_000
    assert [one.name for one in spec.features if not needed_entities(one, spec)] == [
        "amount",
        "items",
        "channel",
        "per_item",
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("decimals: 2", "decimals: 5", "fields.items.decimals: 5 is not within 0 … 4"),
        ("[0, 50]", "[50, 0]", "fields.items.range: [50, 0] does not ascend"),
        ("[0, 50]", "[0, 1.0e+11]", "does not ascend within ±1e+10"),
        ("type: number, d", "type: text, d", "'text'"),
        ("name: items, type", "name: amount, type", "fields.amount: 'amount' is"),
        ("name: items, type", "name: customer_id, type", "is the key of customer"),
        ("[web, app]", "[web, web]", "channel.vocabulary: 'web' appears twice"),
        ("[web, app]", "[web, '']", "'' is not 1 to 128 bytes long"),
        ("type: category}", "type: category, decimals: 1}", "only a number has"),
        ("range: [0, 50]", "vocabulary: [a]", "only a category has one"),
        ("name: device, type", "name: items, type", "fields: 'items' appears twice"),
        ("of: device", "of: items", "fields.device: no feature uses it"),
        ("category}\n", "category, use: policy}\n", "device: is for the policy, and"),
        ("category}\n", "category, use: nobody}\n", "'nobody'"),
        ("field: items", "field: channel", "'channel' is not a number of the request"),
        ("category: channel", "category: items", "'items' is not a category"),
        ("category: channel", "category: device", "'device' has no vocabulary"),
        ("essential: true", "default: 1", "no range, no default but .nan"),
        ("of: items", "of: channel", "items_1d.of: 'channel' is not a number"),
        ("of: device", "of: colour", "'colour' is neither a field nor the key"),
        ("of: terminal_id", "of: customer_id", "is the entity's own key"),
        ("distinct, of: device", "distinct", "distinct needs to know of what"),
        ("count, window: 1h", "count, of: items, window: 1h", "only sum, mean, min"),
        ("range: [0, 9]", "range: [2, 9]", "items.default: 1 is outside of its own"),
        ("range: [0, 9]", "range: [9, 9]", "items.range: [9, 9] does not ascend"),
        ("customer, window: 7d", "customer", "time_since_last needs its window"),
        ("last: customer", "last: card", "gap.time_since_last: 'card' is none of"),
        ("last: customer", "last: customer, entity: customer", "gap.entity: only an"),
        ("[amount, items]", "[amount, later]", "per_item.ratio: 'later' is not a"),
        ("[amount, items]", "[amount, rush]", "'rush' is not a feature that stands"),
        ("[amount, items]", "[amount, channel]", "'channel' is a code, not a number"),
        ("[amount, items]", "[amount]", "Expected `array`"),
        ("[n_1h, n_1d]", "[n_1d, n_1h]", "n_1d's window is not shorter than n_1h's"),
        ("[n_1h, n_1d]", "[n_1h, items_1d]", "n_1h and items_1d are not the same"),
        ("[n_1h, n_1d]", "[amount, n_1d]", "has no count, sum, flagged first"),
        ("max_age: 10m}\n", "max_age: soon}\n", "n_1d.max_age: 'soon' is not a"),
        ("{max_age: 10m}", "{max_age: 0s}", "feeds.purchases.max_age: 0s holds"),
        ("feeds: {purchases", "feeds: {orders", "'orders'"),
        ("ratio: [amount", "field: amount, ratio: [amount", "needs exactly one of"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    """One line with the file, the key and the value."""
    with pytest.raises(SpecError) as caught:
        loaded(tmp_path, (old, new))
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'features.yaml'}: ")
    assert "\n" not in str(caught.value)


def test_more_columns_than_an_entry_takes_are_refused(tmp_path: Path) -> None:
    """Sixteen numbers beyond the amount; the seventeenth is one too many."""
    fields = [f"  - {{name: x{n}, type: number}}\n" for n in range(17)]
    features = [
        f"  - {{name: s{n}, entity: customer, aggregate: sum, of: x{n}, window: 1d}}\n"
        for n in range(17)
    ]
    text = (
        "version: 1\nproduct: shop\nentities: {customer: {key: customer_id}}\n"
        f"fields:\n{''.join(fields)}features:\n{''.join(features)}"
    )
    path = tmp_path / "features.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match="its features are of 17 others, 16 at most"):
        load_spec(path)
    path.write_text(text.replace(features[16], "").replace(fields[16], ""))
    assert len(load_spec(path).entities[0].columns) == 16


@pytest.mark.parametrize(
    ("old", "new", "state", "vector"),
    [
        ("essential: true", "essential: false", False, False),
        ("max_age: 10m}\n", "max_age: 20m}\n", False, False),
        ("{max_age: 10m}", "{max_age: 20m}", False, False),
        ("[web, app]", "[web, app, shop]", False, True),
        ("[amount, items]", "[items, amount]", False, True),
        ("range: [0, 9]", "range: [0, 8]", False, True),
        ("aggregate: sum, of: items", "aggregate: max, of: items", False, True),
        ("decimals: 2, ", "decimals: 1, ", True, True),
        ("distinct, of: terminal_id", "distinct, of: amount", True, True),
    ],
)
def test_hashes_name_state_and_vector(
    tmp_path: Path, old: str, new: str, state: bool, vector: bool
) -> None:
    """What only sets bits is in neither; what entries keep is in both."""
    before, after = loaded(tmp_path), loaded(tmp_path, (old, new))
    assert (before.state_hash != after.state_hash) is state
    assert (before.spec_hash != after.spec_hash) is vector
