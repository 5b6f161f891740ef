"""A product that ranks answers with lists, in all forms the same."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.support.door.asgi import opened
from tests.support.products.small_shop import (
    release_shop,
    small_catalogue,
    write_shop,
)
from tollgate import Engine
from tollgate.door.answers import degraded_names
from tollgate.door.deciders import Upstream
from tollgate.door.products import read_door_product
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.metrics import PAGES
from tollgate.policy import POLICY_FILE, load_policy
from tollgate.ranking.rank import bind_rules, rank_row
from tollgate.ranking.ranking_record import decode_ranking, replay_input
from tollgate.repository.lint.product_rules import check
from tollgate.repository.slo import Form
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.schema import Degraded, hash_words
from tollgate.server.address import Address
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.store_events import Purchases

pytestmark = pytest.mark.slow

FORMS: tuple[Form, ...] = ("ensemble", "fused")
NOW_US = time.time_ns() // 1000
PATIENCE_S = 120.0
LAST_LABELS = {  # of the ranking step's metrics
    row.name: row.labels[-1] for row in PAGES["ranking"][1] if "release" in row.labels
}
STOCK = "tollgate:shop:list:out_of_stock"
# The popular items in order; the small model scores by popularity.
BY_POPULARITY = [b"i0", b"i1", b"i2", b"i3", b"i4", b"i5"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FeatureSpec]:
    """A released shop of six items. A busy machine's store may be late."""
    repository = tmp_path_factory.mktemp("shop") / "model_repository"
    spec = write_shop(repository)
    config = repository / "shop_candidates/config.pbtxt"
    config.write_text(
        config.read_text().replace('string_value: "20"', 'string_value: "5000"')
    )
    release_shop(repository, spec)
    found = check(RepositorySnapshot(repository), product="shop")
    assert [str(one) for one in found] == []
    return repository, spec


@pytest.fixture(scope="module")
def servers(shop: tuple[Path, FeatureSpec]) -> Iterator[dict[Form, Embedded]]:
    """The shop in both forms, each server with its own store."""
    repository, _ = shop
    with ExitStack() as stack:
        yield {
            form: stack.enter_context(
                serve(
                    repository,
                    products=["shop"],
                    state=repository.parent / form,
                    form=form,
                )
            )
            for form in FORMS
        }


def write_events(
    server: Embedded | Address,
    spec: FeatureSpec,
    events: list[tuple[str, str, str, int]],
) -> None:
    """Apply events: user, item, action, seconds before NOW_US."""
    named = [(f"{user}-{age}", user, *rest, age) for user, *rest, age in events]
    write_named_events(server, spec, named)


def write_named_events(
    server: Embedded | Address, spec: FeatureSpec, events: list[tuple[Any, ...]]
) -> None:
    """Apply events: id, user, item, action, seconds before NOW_US."""
    store = open_store(server.store_url, deadline_s=10.0)
    names, users, items, actions, ages = zip(*events, strict=True)
    outcome = EventWriter(spec, store).purchases(
        Purchases(
            transaction_id=[one.encode() for one in names],
            entity_id=[[user.encode() for user in users]],
            event_time_us=np.array([NOW_US - age * 1_000_000 for age in ages]),
            cents=np.zeros(len(names), np.int64),
            fields={
                "item": hash_words([one.encode() for one in items]),
                "action": hash_words([one.encode() for one in actions]),
            },
        )
    )
    assert outcome.applied.all()
    store.close()


def ask(
    server: Embedded,
    users: list[str],
    *,
    ids: list[str],
    exclude: list[str] | None = None,
    slot: str = "product",
    **parameters: Any,
) -> Mapping[str, Any]:
    """Request lists for users: each output as an array."""
    rows = len(users)
    columns = {
        "request_id": ids,
        "user_id": users,
        "event_time": [NOW_US] * rows,
        "slot": [slot] * rows,
        "exclude": exclude or [""] * rows,
    }
    return ask_rows(server, columns, **parameters)


def ask_rows(
    server: Embedded, columns: Mapping[str, list[Any]], **parameters: Any
) -> Mapping[str, Any]:
    """Send the columns of a request: each output as an array."""
    tensors = []
    for name, values in columns.items():
        column = np.array(values, np.int64 if name == "event_time" else np.object_)
        rows = len(column)
        tensor = InferInput(name, [rows, 1], np_to_triton_dtype(column.dtype))
        tensor.set_data_from_numpy(column[:, None])
        tensors.append(tensor)
    with InferenceServerClient(server.grpc_url) as client:
        answer = client.infer("shop", tensors, parameters=parameters, client_timeout=60)
        names = [one.name for one in answer.get_response().outputs]
        return {name: answer.as_numpy(name) for name in names}


def as_bytes(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Make an answer comparable bit by bit; NaN equals NaN."""
    return {
        name: one.tolist() if one.dtype == np.object_ else one.tobytes()
        for name, one in answer.items()
    }


def wait_for_stock(server: Embedded, gone: set[str], *, user: str) -> None:
    """Wait until no list has these items, and every other one may appear."""
    until_s = time.monotonic() + PATIENCE_S
    for number in itertools.count():
        shown = ask(
            server, [user], ids=[f"wait-{user}-{number}"], count=6, dry_run=True
        )
        left = {one.decode() for one in shown["items"][0].tolist() if one}
        if left == {f"i{at}" for at in range(6)} - gone:
            return
        assert time.monotonic() < until_s, left
        time.sleep(0.05)


@pytest.mark.parametrize("form", FORMS)
def test_an_unknown_user_gets_popular_items(
    servers: dict[Form, Embedded], form: Form
) -> None:
    answer = ask(servers[form], ["nobody"], ids=["r-1"])
    assert answer["items"].tolist() == [BY_POPULARITY[:4]]
    assert answer["source"].tolist() == [[b"popular"] * 4]
    assert answer["error"].tolist() == [[b""]]
    assert answer["release"].tolist() == [[b"shop-1"]]
    assert answer["scores"].shape == (1, 4)
    assert (np.diff(answer["scores"][0]) <= 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_an_unknown_user_gets_the_popular_items_of_the_segment(
    servers: dict[Form, Embedded], form: Form
) -> None:
    """The slot names it; of one that has none, everyone's. Exclusions count."""
    server = servers[form]
    cart = ask(server, ["nobody"] * 2, ids=["s-1", "s-2"], slot="cart", count=3)
    assert cart["items"].tolist() == [[b"i5", b"i4", b"i3"]] * 2
    assert (np.diff(cart["scores"]) <= 0).all()
    assert cart["source"].tolist() == [[b"popular"] * 3] * 2
    few = ask(server, ["nobody"], ids=["s-3"], slot="cart", exclude=["i4"], count=2)
    assert few["items"].tolist() == [[b"i5", b"i3"]]
    for slot in ("product", "cellar", ""):
        other = ask(server, ["nobody"], ids=["s-4"], slot=slot, count=3)
        assert other["items"].tolist() == [BY_POPULARITY[:3]]


@pytest.mark.parametrize("form", FORMS)
def test_a_bought_item_is_out_of_the_next_answer(
    servers: dict[Form, Embedded], form: Form, shop: tuple[Path, FeatureSpec]
) -> None:
    server, (_, spec) = servers[form], shop
    write_events(server, spec, [("ann", "i3", "view", 60), ("ann", "i1", "view", 30)])
    first = ask(server, ["ann"], ids=["a-1"], count=6)
    assert b"i0" in first["items"][0].tolist()
    assert set(first["source"][0].tolist()) <= {b"personal", b"similar"}
    write_events(server, spec, [("ann", "i0", "purchase", 1)])
    second = ask(server, ["ann"], ids=["a-2"], count=5)
    assert b"i0" not in second["items"][0].tolist()
    assert set(second["items"][0].tolist()) == set(BY_POPULARITY) - {b"i0"}


@pytest.mark.parametrize("form", FORMS)
def test_stock_exclusions_and_rules_count(
    servers: dict[Form, Embedded], form: Form
) -> None:
    server = servers[form]
    excluded = ask(server, ["bob"], ids=["b-1"], exclude=["i0|i2|nothing"])
    assert excluded["items"].tolist() == [[b"i1", b"i3", b"i4", b"i5"]]
    with redis.Redis.from_url(server.store_url) as store:
        store.sadd(STOCK, "i1", "unknown")
        wait_for_stock(server, {"i1"}, user="bob")
        out = ask(server, ["bob"], ids=["b-2"])
        assert out["items"].tolist() == [[b"i0", b"i2", b"i3", b"i4"]]
        store.srem(STOCK, "i1")
        wait_for_stock(server, set(), user="bob")
    # The scores are logarithms below 0: a boost by 2 halves them, so i5 rises.
    plain = ask(server, ["bob"], ids=["b-3"], count=6)
    home = ask(server, ["bob"], ids=["b-3"], count=6, slot="home")
    at = plain["items"][0].tolist().index(b"i5")
    assert home["scores"][0, home["items"][0].tolist().index(b"i5")] == np.float32(
        plain["scores"][0, at] / 2
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_row_alone_is_the_row_in_a_batch_in_any_order(
    servers: dict[Form, Embedded], form: Form, shop: tuple[Path, FeatureSpec]
) -> None:
    server, (_, spec) = servers[form], shop
    users = [f"user-{at}" for at in range(12)]
    write_events(
        server,
        spec,
        [
            (user, f"i{(at * 7 + step) % 6}", "view", 100 + at + step * 50)
            for at, user in enumerate(users)
            for step in range(at % 4)
        ],
    )
    ids = [f"same-{at}" for at in range(len(users))]
    batch = ask(server, users, ids=ids, dry_run=True)
    back = ask(server, users[::-1], ids=ids[::-1], dry_run=True)
    for row, (user, name) in enumerate(zip(users, ids, strict=True)):
        alone = ask(server, [user], ids=[name], dry_run=True)
        for output, values in alone.items():
            part = {output: batch[output][row : row + 1]}
            assert as_bytes({output: values}) == as_bytes(part)
            there = len(users) - 1 - row
            turned = {output: back[output][there : there + 1]}
            assert as_bytes(part) == as_bytes(turned)


def random_events(chance: np.random.Generator) -> dict[str, list[Any]]:
    """Make events of 40 users: some at one moment, unknown items, and an empty one."""
    count = 400
    return {
        "transaction_id": [f"random-{at}" for at in range(count)],
        "user_id": [f"any-{one}" for one in chance.integers(0, 40, count)],
        "event_time": [
            NOW_US - int(age) * 1_000_000 for age in chance.integers(-5, 300, count)
        ],
        "item": [
            ("", "unheard-of")[one - 6] if one > 5 else f"i{one}"
            for one in chance.integers(0, 8, count).tolist()
        ],
        "action": chance.choice(["view", "cart", "purchase", ""], count).tolist(),
    }


def random_request(chance: np.random.Generator, number: int) -> dict[str, list[Any]]:
    """Make a request of 1 to 32 rows: a few bad, some of users without events."""
    rows = int(chance.integers(1, 33))
    excluded = [
        "|".join(f"i{one}" for one in chance.integers(0, 7, chance.integers(0, 5)))
        for _ in range(rows)
    ]
    users = [f"any-{one}" for one in chance.integers(0, 50, rows)]
    if rows > 1:
        users[0] = "" if number % 3 == 0 else users[0]
        excluded[1] = "|".join(["x"] * 101) if number % 4 == 0 else excluded[1]
    return {
        "request_id": [f"any-{number}-{row}" for row in range(rows)],
        "user_id": users,
        "event_time": [
            NOW_US - int(age) * 1_000_000 for age in chance.integers(-9, 300, rows)
        ],
        "slot": chance.choice(["home", "product", "cart", "cellar", ""], rows).tolist(),
        "exclude": excluded,
    }


def test_all_forms_answer_with_the_same_bits(
    servers: dict[Form, Embedded], shop: tuple[Path, FeatureSpec]
) -> None:
    """Ensemble, fused and local, for random events, requests, counts and stock."""
    repository, spec = shop
    chance = np.random.default_rng(11)
    events = random_events(chance)
    ages = [(NOW_US - one) // 1_000_000 for one in events["event_time"]]
    names = ("transaction_id", "user_id", "item", "action")
    rows = list(zip(*(events[name] for name in names), ages, strict=True))
    for server in servers.values():
        write_named_events(server, spec, rows)
    seen: Counter[str] = Counter()
    with Engine.open(repository, product="shop") as engine:
        outcome = engine.apply(events)
        assert outcome["applied"].all()
        for number in range(60):
            gone = ["i1", "i4"] if number >= 30 else []
            if number in (0, 30):
                probe = random_request(np.random.default_rng(5), number=1)
                wanted = engine.rank(probe, out_of_stock=gone, dry_run=True)
                for server in servers.values():
                    set_stock(server, gone, user=f"stock-{number}")
                    wait_for_answer(server, probe, as_bytes(as_rows(wanted)))
            columns = random_request(chance, number)
            parameters = {"count": int(chance.integers(1, 9))} if number % 5 else {}
            answers = [
                as_bytes(ask_rows(server, columns, **parameters))
                for server in servers.values()
            ]
            assert answers[0] == answers[1], number
            local = as_rows(engine.rank(columns, out_of_stock=gone, **parameters))
            assert as_bytes(local) == answers[0], number
            seen.update(word for row in local["source"].tolist() for word in row)
            seen.update(one for (one,) in local["error"].tolist() if one)
    for server in servers.values():
        set_stock(server, [], user="stock-again")
    assert set(seen) == {
        *(b"personal", b"similar", b"popular", b""),
        b'user_id: "": is empty',
        b"exclude: 101 ids: at most 100 are allowed",
    }


def test_the_door_has_the_lists_of_the_server(
    servers: dict[Form, Embedded], shop: tuple[Path, FeatureSpec]
) -> None:
    """In JSON: the same items, scores, sources and bits, of known and new users."""
    repository, spec = shop
    product = read_door_product(repository, product="shop")
    for server in servers.values():
        write_events(
            server, spec, [("dora", "i3", "view", 50), ("dora", "i0", "cart", 9)]
        )
        users, slots = ["dora", "nobody", "dora"], ["home", "cart", "cellar"]
        rows = [
            {
                "request_id": f"door-{at}",
                "user_id": user,
                "event_time": NOW_US,
                "slot": slot,
                "exclude": ["i1", "unheard-of"],
                "count": 3,
            }
            for at, (user, slot) in enumerate(zip(users, slots, strict=True))
        ]

        async def call(url: str, body: list[dict[str, Any]]) -> Any:
            upstream = Upstream([url], deadline_s=PATIENCE_S)
            async with opened(upstream, products=[product]) as door:
                return (await door.post("/rank/shop", body)).json

        found = asyncio.run(call(server.grpc_url, rows))
        for at, answer in enumerate(found):
            direct = ask(
                server,
                [users[at]],
                ids=[f"door-{at}"],
                exclude=["i1|unheard-of"],
                slot=slots[at],
                count=3,
            )
            shown = [
                (one["item"].encode(), np.float32(one["score"]), one["source"].encode())
                for one in answer["items"]
            ]
            wanted = (
                direct[name][0].tolist() for name in ("items", "scores", "source")
            )
            assert shown == list(zip(*wanted, strict=True))
            assert (answer["source"], answer["release"]) == ("model", "shop-1")
            assert answer["degraded"] == degraded_names(int(direct["degraded"][0, 0]))


def set_stock(server: Embedded, gone: list[str], *, user: str) -> None:
    """Replace the list of items out of stock, and wait until answers follow it."""
    with redis.Redis.from_url(server.store_url) as store:
        store.delete(STOCK)
        if gone:
            store.sadd(STOCK, *gone)
        wait_for_stock(server, set(gone), user=user)


def wait_for_answer(
    server: Embedded, columns: Mapping[str, list[Any]], wanted: dict[str, Any]
) -> None:
    """Wait for an answer: each of two steps reads the stock in the background."""
    until_s = time.monotonic() + PATIENCE_S
    while as_bytes(ask_rows(server, columns, dry_run=True)) != wanted:
        assert time.monotonic() < until_s
        time.sleep(0.05)


def as_rows(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Give an answer of the local form the shapes and bytes of a server's."""
    found = {}
    for name, values in answer.items():
        column = values if values.ndim == 2 else values[:, None]
        if column.dtype == np.object_:
            texts = [[one.encode() for one in row] for row in column.tolist()]
            column = np.array(texts, np.object_).reshape(column.shape)
        found[name] = column
    return found


@pytest.mark.parametrize("form", FORMS)
def test_a_bad_row_fails_alone(servers: dict[Form, Embedded], form: Form) -> None:
    many = "|".join(f"x{at}" for at in range(101))
    answer = ask(
        servers[form],
        ["eve", "", "eve"],
        ids=["e-1", "e-2", "e-3"],
        exclude=[many, "", ""],
    )
    assert [one.decode() for one in answer["error"][:, 0]] == [
        "exclude: 101 ids: at most 100 are allowed",
        'user_id: "": is empty',
        "",
    ]
    assert answer["items"].tolist() == [[b""] * 4, [b""] * 4, BY_POPULARITY[:4]]
    with pytest.raises(
        InferenceServerException, match="count: 51: is no whole number, 1 to 50"
    ):
        ask(servers[form], ["eve"], ids=["e-4"], count=51)


@pytest.mark.parametrize("form", FORMS)
def test_the_record_of_an_answer_repeats_its_list(
    servers: dict[Form, Embedded], form: Form, shop: tuple[Path, FeatureSpec]
) -> None:
    server, (repository, spec) = servers[form], shop
    answer = ask(server, ["zoe"], ids=["z-1"], exclude=["i2"], slot="home", count=3)
    until_s, found = time.monotonic() + PATIENCE_S, b""
    with redis.Redis.from_url(server.store_url) as store:
        while not found:
            assert time.monotonic() < until_s
            for _, entry in store.xrange(stream_key("shop")):
                if CHUNK_FIELD in entry:
                    chunk = decode_chunk(entry[CHUNK_FIELD])
                    for name, details in zip(
                        chunk.transaction_id, chunk.details, strict=True
                    ):
                        found = details if name == b"z-1" else found
    record = decode_ranking(found)
    catalogue = small_catalogue()
    assert record.catalogue_hash == catalogue.hash
    policy = load_policy(
        repository / "shop_ranking/1" / POLICY_FILE,
        feature_names=spec.feature_names,
        fields=spec.fields,
    )
    assert policy.ranking is not None
    again = rank_row(
        replay_input(record, items=catalogue.size),
        bind_rules(policy.ranking, catalogue),
    )
    shown = [catalogue.item_ids[at] for at in again.items.tolist()]
    assert shown == answer["items"][0].tolist()
    assert again.scores.tobytes() == answer["scores"][0].tobytes()


@pytest.mark.parametrize("form", FORMS)
def test_a_store_that_hangs_costs_no_list(
    servers: dict[Form, Embedded], form: Form, shop: tuple[Path, FeatureSpec]
) -> None:
    server, (_, spec) = servers[form], shop
    write_events(server, spec, [("kim", "i4", "purchase", 9), ("kim", "i3", "view", 5)])
    with redis.Redis.from_url(server.store_url) as store:
        store.sadd(STOCK, "i5")
        wait_for_stock(server, {"i5"}, user="kim-waits")
    known = ask(server, ["kim"], ids=["k-1"], count=5, slot="cart")
    assert b"i4" not in known["items"][0].tolist()
    with redis.Redis.from_url(server.store_url) as store:
        # Longer than the step waits for it.
        store.execute_command("CLIENT", "PAUSE", 7_000, "ALL")
    users = ["kim", "stranger"]
    answer = ask(server, users, ids=["k-2", "k-3"], count=5, slot="cart")
    assert answer["items"][0].tolist() == known["items"][0].tolist()
    assert answer["source"][0].tolist() == known["source"][0].tolist()
    # The popular items of the segment, and those in stock.
    assert answer["items"][1].tolist() == [b"i4", b"i3", b"i2", b"i1", b"i0"]
    assert answer["source"][1].tolist() == [b"fallback"] * 5
    first, second = (Degraded(int(one)) for one in answer["degraded"][:, 0])
    assert Degraded.LAST_KNOWN_VECTOR in first
    assert Degraded.STORE_UNAVAILABLE in second
    assert answer["error"].tolist() == [[b""], [b""]]
    set_stock(server, [], user="kim-again")


def metric_series(server: Embedded) -> dict[str, dict[frozenset[str], float]]:
    """Read the metrics of lists of a server: name -> labels and value."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as page:
        text = page.read().decode()
    found: dict[str, dict[frozenset[str], float]] = {}
    for row in PAGES["ranking"][1]:
        if row.name not in LAST_LABELS:
            continue
        series = re.findall(rf"^{row.name}{{(.*)}} (\S+)$", text, re.MULTILINE)
        for labels, number in series:
            pairs = re.findall(r'(\w+)="([^"]*)"', labels)
            assert {name for name, _ in pairs} == set(row.labels)
            named = frozenset(f"{name}={word}" for name, word in pairs)
            found.setdefault(row.name, {})[named] = float(number)
    return found


def risen(
    server: Embedded, before: Mapping[str, Mapping[frozenset[str], float]]
) -> dict[tuple[str, str], float]:
    """Return the increase of each metric of lists by its last label."""
    found = {}
    for name, series in metric_series(server).items():
        label = LAST_LABELS[name]
        for labels, number in series.items():
            more = number - before[name].get(labels, 0.0)
            if more:
                (word,) = (one for one in labels if one.startswith(f"{label}="))
                found[name, word.partition("=")[2]] = more
    return found


@pytest.mark.parametrize("form", FORMS)
def test_the_metrics_count_the_lists_of_callers(
    servers: dict[Form, Embedded], form: Form, shop: tuple[Path, FeatureSpec]
) -> None:
    server, (_, spec) = servers[form], shop
    write_events(server, spec, [("max", "i4", "view", 9)])
    before = metric_series(server)
    assert set(LAST_LABELS) == set(before)
    ask(server, ["stranger", "stranger"], ids=["m-1", "m-2"], count=6)
    ask(server, ["stranger"], ids=["m-3"], dry_run=True)
    ask(server, ["stranger"], ids=["m-4"], count=6, exclude=["i0|i1"])
    known = ask(server, ["max"], ids=["m-5"], count=3)
    sources = [one.decode() for one in known["source"][0].tolist()]
    expected: Counter[tuple[str, str]] = Counter(
        {
            ("tollgate_lists_total", "popular"): 3,
            ("tollgate_list_items_total", "popular"): 16,
            ("tollgate_list_defects_total", "short"): 1,
        }
    )
    expected["tollgate_lists_total", sources[0]] += 1
    expected.update(("tollgate_list_items_total", one) for one in sources)
    until_s = time.monotonic() + PATIENCE_S
    while (found := risen(server, before)) != dict(expected):
        assert time.monotonic() < until_s, found
        time.sleep(0.1)
