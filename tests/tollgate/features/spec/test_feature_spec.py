"""features.yaml: what it becomes, how it is refused, what its hashes name."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tollgate.errors import SpecError
from tollgate.features.spec.description import state_text
from tollgate.features.spec.feature_spec import (
    Entity,
    FeatureSpec,
    load_draft,
    load_spec,
    load_with_hops,
)
from tollgate.features.spec.spec_document import duration_us

DAY_US = 86_400_000_000

SMALL = """\
version: 1
product: fraud
lateness: 1d
entities:
  customer: {key: customer_id}
  terminal: {key: terminal_id, delay: 7d}
features:
  - {name: amount, field: amount}
  - {name: night, calendar: night}
  - {name: n_1d, entity: customer, aggregate: count, window: 1d, default: 1}
  - {name: n_7d, entity: customer, aggregate: count, window: 7d}
  - {name: n_30d, entity: customer, aggregate: mean, window: 30d}
  - {name: risk_30d, entity: terminal, aggregate: share, window: 30d}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for features.yaml."""
    return tmp_path


def loaded(folder: Path, *changes: tuple[str, str]) -> FeatureSpec:
    """Load the small spec with texts replaced."""
    text = SMALL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "features.yaml"
    path.write_text(text)
    return load_spec(path)


def test_fraud_spec_has_the_fifteen_features_in_order(spec: FeatureSpec) -> None:
    """The order is the model's: it is part of the product."""
    assert spec.feature_names == (
        "amount",
        "during_weekend",
        "during_night",
        "customer_nb_tx_1d",
        "customer_avg_amount_1d",
        "customer_nb_tx_7d",
        "customer_avg_amount_7d",
        "customer_nb_tx_30d",
        "customer_avg_amount_30d",
        "terminal_nb_tx_1d",
        "terminal_risk_1d",
        "terminal_nb_tx_7d",
        "terminal_risk_7d",
        "terminal_nb_tx_30d",
        "terminal_risk_30d",
    )
    assert spec.entity_names == ("customer", "terminal")
    assert spec.columns == (
        "transaction_id",
        "customer_id",
        "terminal_id",
        "amount",
        "event_time",
    )


def test_horizon_is_longest_window_plus_delay_plus_lateness(spec: FeatureSpec) -> None:
    """Customer: 30 + 0 + 1 days; terminal: 30 + 7 + 1 days."""
    customer, terminal = spec.entities
    assert (customer.horizon_us, terminal.horizon_us) == (31 * DAY_US, 38 * DAY_US)
    assert customer.windows_us == (DAY_US, 7 * DAY_US, 30 * DAY_US)


def test_features_point_at_their_entity_and_window(folder: Path) -> None:
    """Indexes name the entity of the file and that entity's windows, ascending."""
    spec = loaded(folder, ("window: 1d", "window: 9d"))
    assert spec.entities[0].windows_us == (7 * DAY_US, 9 * DAY_US, 30 * DAY_US)
    pointers = [(one.entity, one.window) for one in spec.features]
    assert pointers == [(-1, -1), (-1, -1), (0, 1), (0, 0), (0, 2), (1, 0)]
    assert [one.default for one in spec.features] == [0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "wanted_us"),
    [("30d", 30 * DAY_US), ("12h", DAY_US // 2), ("5m", 300_000_000), ("0s", 0)],
)
def test_duration_is_digits_and_one_unit(text: str, wanted_us: int) -> None:
    """Days, hours, minutes, seconds; no fractions, no sums."""
    assert duration_us(text) == wanted_us


@pytest.mark.parametrize("text", ["", "d", "1", "1w", "1.5d", "-1d", "1d2h", " 1d"])
def test_anything_else_is_not_a_duration(text: str) -> None:
    """The message shows the text and a right one."""
    with pytest.raises(ValueError, match="is not a duration like 30d") as caught:
        duration_us(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("version: 1", "version: 2", ["version: 2 is not 1"]),
        ("product: fraud\n", "", ["`product`"]),
        ("product: fraud", "produkt: fraud", ["`produkt`"]),
        ("lateness: 1d", "lateness: 1 day", ["lateness: '1 day' is not a duration"]),
        ("lateness: 1d", "lateness: 5", ["$.lateness"]),
        ("customer: {key", "customer: {kee", ["entities.customer: ", "`kee`"]),
        ("{key: customer_id}", "{key: customer_id, hop: 2h}", ["customer.hop: 2h"]),
        ("delay: 7d", "delay: soon", ["entities.terminal.delay: 'soon'"]),
        ("delay: 7d", "rate: 40", ["entities.terminal.rate: Expected `str | null`"]),
        ("delay: 7d", "hop: null", ["entities.terminal.hop: Expected `int | str`"]),
        ("window: 7d", "window: 7", [".window: Expected `str | null`, got `int`"]),
        ("delay: 7d", "delay: 7d, cap: 0", ["entities.terminal.cap: 0", "1024"]),
        ("delay: 7d", "delay: 7d, cap: 1025", ["entities.terminal.cap: 1025"]),
        ("entities:\n", "entities:\n  card: {key: c}\n", ["entities.card: no feature"]),
        ("field: amount", "field: colour", ["features.amount.field: 'colour'"]),
        ("field: amount", "kalendar: night", ["features.amount: ", "`kalendar`"]),
        ("field: amount", "default: 1", ["features.amount: needs exactly one of"]),
        ("calendar: night", "calendar: noon", ["'noon'", "calendar"]),
        ("calendar: night", "calendar: night, field: amount", ["features.night: need"]),
        ("name: n_7d", "name: n_1d", ["features: 'n_1d' appears twice"]),
        ("aggregate: count", "aggregate: median", ["'median'", "aggregate"]),
        ("window: 7d", "window: 7", ["window"]),
        ("window: 7d", "window: 7y", ["features.n_7d.window: '7y' is not a duration"]),
        (", window: 7d", "", ["features.n_7d: an aggregate needs its window"]),
        ("entity: customer, ", "", ["features.n_1d: an aggregate needs its entity"]),
        (
            "entity: customer",
            "entity: shop",
            ["features.n_1d.entity: 'shop' is none of customer, terminal"],
        ),
        ("window: 7d", "window: 0d", ["features.n_7d.window: 0d holds nothing"]),
        ("window: 7d", "window: 3654d", ["features.n_7d.window: 3654d is over 3653d"]),
        ("delay: 7d", "delay: 999999d", ["terminal.delay: 999999d is over 3653d"]),
        ("lateness: 1d", "lateness: 87673h", ["lateness: 87673h is over 3653d"]),
        ("lateness: 1d", "lateness: 3630d", ["entities.customer: longest window, "]),
        ("window: 7d", "window: \u0661d", ["n_7d.window: '\u0661d' is not a duration"]),
        ("default: 1", "default: one", ["default"]),
        (
            "default: 1",
            "default: .nan",
            [
                "features.n_1d.default: only field, category, ratio, difference, hook "
                "may be .nan"
            ],
        ),
        ("default: 1", "default: -.inf", ["features.n_1d.default: -inf is not a"]),
        ("default: 1", "default: 1.0e+39", ["n_1d.default: 1e+39 is not a finite"]),
        (
            "field: amount",
            "field: amount, window: 1d",
            ["features.amount.window: only"],
        ),
        (
            "calendar: night",
            "calendar: night, entity: customer",
            ["features.night.entity: only an aggregate has one"],
        ),
        ("name: n_7d", 'name: "n,7d"', ["features: 'n,7d' is not a name"]),
        ("name: n_7d", "name: 7d", ["features: '7d' is not a name"]),
        ("name: n_7d", "name: größe", ["features: 'größe' is not a name"]),
        ("name: n_7d", f"name: {'n' * 65}", ["is not a name of up to 64 letters"]),
        ("  customer: {", '  "cust omer": {', ["entities: 'cust omer' is not a name"]),
        ("  customer: {", "  transaction: {", ["entities.transaction: its ids would"]),
        ("key: customer_id", 'key: ""', ["entities.customer.key: '' is not a name"]),
        ("key: customer_id", "key: amount", ["customer.key: 'amount' is another"]),
        ("key: customer_id", "key: event_time", ["customer.key: 'event_time' is an"]),
        ("key: customer_id", "key: transaction_id", ["'transaction_id' is another"]),
        ("key: customer_id", "key: label", ["customer.key: 'label' is another"]),
        (
            "key: terminal_id",
            "key: customer_id",
            ["entities.terminal.key: 'customer_id' is the key of customer already"],
        ),
        ("lateness: 1d", "lateness: 1d\nlateness: 2d", ["line 4: 'lateness' appears"]),
        ("window: 7d", "window: 7d, window: 8d", ["line 11: 'window' appears twice"]),
        (
            "features:\n",
            "features: &all\n  - *all\n",
            ["Expected `object`", "$.features"],
        ),
        ("features:\n", "features: []\nrest:\n", ["`rest`"]),
        (SMALL[SMALL.index("features:") :], "features: []", ["features: is empty"]),
        ("product:", "aliases: {colour: [C]}\nproduct:", ["aliases: 'colour' is none"]),
        (
            "product:",
            "aliases: {amount: [A], event_time: [A]}\nproduct:",
            ["aliases.event_time: 'A' names amount already"],
        ),
        (
            "product:",
            "aliases: {amount: [customer_id]}\nproduct:",
            ["aliases.amount: 'customer_id' names customer_id already"],
        ),
        ("version: 1", "version: [1", ["expected ',' or ']'"]),
        ("version: 1", "- version", ["line 2"]),
        (SMALL, "", ["Expected `object`"]),
    ],
)
def test_wrong_spec_is_refused_by_file_and_key(
    folder: Path, old: str, new: str, words: list[str]
) -> None:
    """One line that names the file, the key and the value, or the line of the file."""
    with pytest.raises(SpecError) as caught:
        loaded(folder, (old, new))
    message = str(caught.value)
    assert message.startswith(f"{folder / 'features.yaml'}: ")
    assert "\n" not in message
    for word in words:
        assert word in message
    assert caught.value.exit_status == 2


def test_spec_that_cannot_be_read_is_refused(folder: Path) -> None:
    """A missing file, a folder and bytes that are not text are named."""
    with pytest.raises(SpecError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_spec(folder / "nowhere.yaml")
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        load_spec(folder)
    (folder / "latin.yaml").write_bytes("product: café".encode("latin-1"))
    with pytest.raises(SpecError, match=r"latin\.yaml: "):
        load_spec(folder / "latin.yaml")


def test_same_file_has_the_same_hashes(folder: Path) -> None:
    """They are a function of what the file says, not of when or where it is read."""
    one, two = loaded(folder), loaded(folder, ("version: 1", "# a comment\nversion: 1"))
    assert (one.spec_hash, one.state_hash) == (two.spec_hash, two.state_hash)
    assert 0 < one.spec_hash < 2**64
    assert one.spec_hash != one.state_hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("window: 7d", "window: 8d"),  # same horizon, same index of the window
        ("window: 1d", "window: 2h"),
        ("aggregate: count, window: 7d", "aggregate: sum, window: 7d"),
        ("default: 1", "default: 2"),
        ("calendar: night", "calendar: weekend"),
        ("name: n_7d", "name: n_week"),
        ("  - {name: night, calendar: night}\n", ""),
        (
            "  - {name: amount, field: amount}\n  - {name: night, calendar: night}\n",
            "  - {name: night, calendar: night}\n  - {name: amount, field: amount}\n",
        ),
    ],
)
def test_another_vector_changes_only_the_spec_hash(
    folder: Path, old: str, new: str
) -> None:
    """The stored values of an entity are the same, so its key prefix is too."""
    before, after = loaded(folder), loaded(folder, (old, new))
    assert after.spec_hash != before.spec_hash
    assert after.state_hash == before.state_hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("window: 30d}\n  - {name: risk", "window: 31d}\n  - {name: risk"),
        ("lateness: 1d", "lateness: 2d"),
        ("delay: 7d", "delay: 6d"),
        ("delay: 7d", "delay: 7d, cap: 100"),
        ("key: terminal_id", "key: shop_id"),
        ("product: fraud", "product: fraud2"),
    ],
)
def test_another_state_changes_both_hashes(folder: Path, old: str, new: str) -> None:
    """Values of another horizon, cap or key live under another prefix."""
    before, after = loaded(folder), loaded(folder, (old, new))
    assert after.spec_hash != before.spec_hash
    assert after.state_hash != before.state_hash


def test_hashes_of_the_fraud_product_are_what_its_models_were_made_with(
    spec: FeatureSpec,
) -> None:
    """Another way to compute them would orphan every stored value and every model."""
    assert f"{spec.spec_hash:016x}" == "c36f8242c6fa0068"
    assert f"{spec.state_hash:016x}" == "2cf96ef3ba675808"


def test_aliases_are_outside_of_the_hashes(folder: Path) -> None:
    """What other people's files call a column changes no vector."""
    before = loaded(folder)
    aliases = "aliases: {amount: [AMT, SUM], label: [FRAUD], label_time: []}"
    after = loaded(folder, ("product:", f"{aliases}\nproduct:"))
    assert after.aliases == {
        "amount": ("AMT", "SUM"),
        "label": ("FRAUD",),
        "label_time": (),
    }
    assert (after.spec_hash, after.state_hash) == (before.spec_hash, before.state_hash)


def one_entity(folder: Path, entity: str, *features: str, lateness: str = "1d") -> Path:
    """Write a spec of one entity, `busy`."""
    path = folder / "features.yaml"
    path.write_text(
        f"version: 1\nproduct: p\nlateness: {lateness}\n"
        f"entities: {{busy: {{key: busy_id{entity}}}}}\nfeatures:\n"
        + "".join(
            f"  - {{name: f{at}, {one.replace('@', 'entity: busy, aggregate:')}}}\n"
            for at, one in enumerate(features)
        )
    )
    return path


# By hand, about: a level has (time until they are merged + width of the next) / width
# tiles. Each has 8 bytes, and 8 for a sum or 4 for the frauds; an event has 48.
# 1d, sum: without a delay all hops up to 1h have 49 tiles of 1h for 2 days, 16 bytes.
# 7d, delay 7d, share: 15m has 792 tiles of 15m, over 9,000 bytes. 1h has 198 of 1h and
#   29 of 6h, under 3,000.
# 365d, delay 30d, share: 1d has 397 tiles, over 4,700 bytes. 15m has 3,072 of 15m, over
#   36,000. 1h has 768 and 366, under 14,000.
@pytest.mark.parametrize(
    ("entity", "features", "remedy", "obstacle"),
    [
        ("", ["@ sum, window: 1d"], "set hop: 1s", ""),
        (", delay: 7d", ["@ share, window: 7d"], "set hop: 1h", ""),
        (", delay: 30d", ["@ share, window: 365d"], "set hop: 1h", ""),
        (", cap: 1000", ["@ sum, window: 1d"], "set hop: 1s without a cap", ""),
        (", cap: 7", ["@ sum, window: 1d"], "set hop: 1s without a cap", ""),
        (
            "",
            ["@ sum, window: 1d", "@ distinct, of: amount, window: 1d"],
            "",
            "f1 (distinct) needs every event",
        ),
        (
            ", delay: 1d",
            ["@ sum, window: 1d", "@ last, window: 1d"],
            "",
            "f1 (last) needs every event with a delay",
        ),
        (
            ", delay: 1d",
            ["time_since_last: busy, window: 1d"],
            "",
            "f0 (time_since_last) needs every event with a delay",
        ),
        # 3,000 tiles of a day.
        (
            ", delay: 1d",
            ["@ share, window: 3000d"],
            "",
            "its values would exceed 16,384 bytes with any",
        ),
    ],
)
def test_an_entity_without_a_hop_knows_the_smallest_that_fits(
    folder: Path, entity: str, features: list[str], remedy: str, obstacle: str
) -> None:
    """The smallest within 4,096 bytes, else within 16,384, else the reason."""
    (found,) = load_spec(one_entity(folder, entity, *features)).entities
    assert (found.fit.remedy, found.fit.obstacle) == (remedy, obstacle)


@pytest.mark.parametrize(
    ("entity", "window", "problem"),
    [
        (", delay: 30d, hop: 15m", "365d", "8 events; the most is 16,384: set hop: 1h"),
        (
            ", delay: 30d, hop: 15m, cap: 400",
            "365d",
            "400 events; the most is 16,384: set hop: 1h without a cap",
        ),
        (
            ", delay: 1d, hop: 1d",
            "3000d",
            "8 events; the most is 16,384: shorten its longest window",
        ),
        (
            ", delay: 3000d, hop: 1d",
            "1d",
            "8 events; the most is 16,384: shorten its delay",
        ),
    ],
)
def test_a_hop_that_is_too_small_names_one_that_fits(
    folder: Path, entity: str, window: str, problem: str
) -> None:
    """The smallest whose values have at most 16,384 bytes."""
    with pytest.raises(SpecError) as caught:
        load_spec(one_entity(folder, entity, f"@ share, window: {window}"))
    assert caught.value.where == "entities.busy.hop"
    assert " needs up to " in caught.value.problem
    assert caught.value.problem.endswith(problem)


def test_a_cap_that_is_too_large_for_its_hop_names_the_largest(folder: Path) -> None:
    """The named cap is accepted, and one event more is refused."""

    def load(cap: int) -> FeatureSpec:
        entity = f", delay: 7d, hop: 1h, cap: {cap}"
        return load_spec(one_entity(folder, entity, "@ share, window: 30d"))

    with pytest.raises(SpecError, match=r"lower its cap to (\d+)$") as caught:
        load(400)
    largest = int(caught.value.problem.split()[-1])
    assert load(largest).entities[0].cap == largest
    with pytest.raises(SpecError, match=f"lower its cap to {largest}$"):
        load(largest + 1)


@pytest.mark.parametrize(
    ("entity", "features"),
    [
        ("", ["@ sum, window: 1d"]),
        ("", ["@ count, window: 1m", "@ max, window: 90d"]),
        (", delay: 7d", ["@ share, window: 7d", "@ mean, window: 1h"]),
        (", delay: 30d", ["@ share, window: 365d"]),
        *(
            (f", cap: {cap}", ["@ sum, window: 1d"])
            for cap in (7, 8, *range(56, 90, 3))
        ),
        *(
            (f", delay: 2d, cap: {cap}", ["@ min, window: 7d"])
            for cap in (50, 250, 320)
        ),
    ],
)
def test_the_smallest_hop_is_found_by_trying_each(
    folder: Path, entity: str, features: list[str]
) -> None:
    """A file with every hop in turn: the first within 4,096 bytes, else the first."""
    sizes: dict[str, int] = {}
    for hop in ("1s", "10s", "1m", "5m", "15m", "1h", "6h", "1d"):
        with contextlib.suppress(SpecError):
            path = one_entity(folder, f"{entity}, hop: {hop}", *features)
            (tried,) = load_spec(path).entities
            assert tried.tiles is not None
            sizes[hop] = tried.tiles.value_bytes(tried.cap, 0)
    small = [hop for hop, size in sizes.items() if size <= 4096]
    (found,) = load_spec(one_entity(folder, entity, *features)).entities
    assert found.fit.without_cap == (not sizes)
    if sizes:
        assert found.fit.hop == [*small, *sizes][0]


# When a head of cap is full, cap - 8 are left, or half of cap: 4 of 8, 5 of 9, 8 of 15,
# 8 of 16, 9 of 17, 30 of 38.
@pytest.mark.parametrize(
    ("nth", "least"), [(2, 8), (4, 8), (5, 9), (8, 15), (9, 17), (30, 38)]
)
def test_the_head_of_a_hop_always_has_the_nth_newest_event(
    folder: Path, nth: int, least: int
) -> None:
    """A smaller cap in the file is refused; without one, it is at least that."""
    features = [f"@ last, nth: {nth}, window: 365d", "@ max, window: 30d"]

    def load(entity: str) -> Entity:
        (entity_,) = load_spec(one_entity(folder, entity, *features)).entities
        return entity_

    assert load(f", hop: 1d, cap: {least}").cap == least
    # The tiles leave room for 8 in 4,096 bytes.
    assert load(", hop: 1d").cap == least
    with pytest.raises(SpecError) as caught:
        load(f", hop: 1d, cap: {least - 1}")
    expected = f"{least - 1} is not within 8 … 1024"
    if least > 8:
        expected = f"{least - 1} is too small for nth: {nth} of f0: set cap: {least}"
    assert (caught.value.where, caught.value.problem) == (
        "entities.busy.cap",
        expected,
    )
    assert load(f", cap: {least}").fit.remedy == load("").fit.remedy
    assert load(f", cap: {least - 1}").fit.remedy.endswith(" without a cap")


def test_features_without_moments_have_the_state_of_before(folder: Path) -> None:
    """The hash of a file with a hop, as commit d7178a84 computed it."""
    features = ["@ sum, window: 1d", "@ share, window: 7d", "@ min, window: 1d"]
    path = one_entity(folder, ", hop: 1h", *features, "@ last, window: 1d")
    assert f"{load_spec(path).state_hash:016x}" == "b57001e08bb625bf"


def test_an_open_hop_is_no_hop_to_serve(folder: Path) -> None:
    """Only a draft may leave it open; the refusal names what to write."""
    path = one_entity(folder, ", hop: auto, delay: 7d", "@ share, window: 7d")
    (entity,) = load_draft(path).entities
    assert (entity.auto, entity.tiles, entity.cap) == (True, None, 1024)
    assert state_text(entity) == (
        "busy: 48 bytes a purchase, for 15d; hop: auto, which a history decides"
    )
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert caught.value.where == "entities.busy.hop"
    assert caught.value.problem == (
        "auto cannot be served: write hop: 0, or if an id has more than 1,024 events "
        "in its widest window set hop: 1h; `tollgate features build HISTORY OUT` "
        "prints which"
    )


@pytest.mark.parametrize("hop", ["0", "1h", "1d"])
def test_a_chosen_hop_has_the_hashes_of_the_file_that_names_it(
    folder: Path, hop: str
) -> None:
    """Rate and `auto` themselves are in no hash."""
    features = ["@ share, window: 7d", "@ count, window: 1d"]
    path = one_entity(folder, ", delay: 7d, hop: auto, rate: 9/s", *features)
    chosen = load_with_hops(path, {"busy": hop})
    written = load_spec(one_entity(folder, f", delay: 7d, hop: {hop}", *features))
    assert chosen.spec_hash == written.spec_hash
    assert chosen.state_hash == written.state_hash
    assert chosen.entities[0].tiles == written.entities[0].tiles
    assert not chosen.entities[0].auto


@pytest.mark.parametrize("rate", ["40", "0/d", "-1/d", "1/w", "1.5", "1 /d", "x/d"])
def test_a_rate_is_a_number_of_events_per_unit(folder: Path, rate: str) -> None:
    """The message shows the text and right ones."""
    with pytest.raises(SpecError) as caught:
        load_spec(one_entity(folder, f", rate: '{rate}'", "@ sum, window: 1d"))
    assert caught.value.where == "entities.busy.rate"
    assert "is not a rate like 40/d, 12.5/h or 3/s" in caught.value.problem
