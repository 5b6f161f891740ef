"""Prepared lists are served while they hold, with the bits of lists that are not."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import redis
from typer.testing import CliRunner

from tests.support.audit.ranked_records import write_ranked_shop
from tests.tollgate.server.test_ranking_served import (
    FORMS,
    NOW_US,
    PATIENCE_S,
    STOCK,
    as_bytes,
    ask,
    write_events,
)
from tollgate.backfill.prepared_lists import (
    PreparedRelease,
    most_active_users,
    open_ranking_release,
    prepare_lists,
)
from tollgate.cli.app import app
from tollgate.policy import POLICY_FILE
from tollgate.ranking.prepared import prepared_key
from tollgate.repository.hashes import hash_file
from tollgate.repository.slo import Form
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.store.redis.cluster_store import open_store

pytestmark = pytest.mark.slow

HOUR_US = 3_600 * 10**6


class Shop(msgspec.Struct, frozen=True, eq=False):
    """A served shop of 60 items, with diversity and exploration, in one form."""

    repository: Path
    release: PreparedRelease
    server: Embedded

    def prepare(
        self, *users: str, release: PreparedRelease | None = None, made_us: int = NOW_US
    ) -> None:
        """Prepare the lists of users at a time."""
        store = open_store(self.server.store_url, deadline_s=10.0)
        done = prepare_lists(
            release or self.release,
            store,
            [one.encode() for one in users],
            life_us=HOUR_US,
            wall_us=lambda: made_us,
        )
        assert done.prepared == len(users)
        store.close()

    def view(
        self, user: str, *items: str, action: str = "view", newest_s: int = 60
    ) -> None:
        """Let a user look at items, one each minute, the last one so long ago."""
        events = [
            (user, item, action, newest_s + 60 * at)
            for at, item in enumerate(reversed(items))
        ]
        write_events(self.server, self.release.spec, events)

    def ask(self, *users: str, **more: Any) -> dict[str, Any]:
        """Request lists; the same users get the same draws."""
        ids = [f"draw-{user}" for user in users]
        return dict(ask(self.server, list(users), ids=ids, **more))

    def found(self) -> dict[str, float]:
        """Read how many rows found what so far, and how many ages were counted."""
        time.sleep(2.5)  # steps export once a second
        with urllib.request.urlopen(self.server.metrics_url) as page:
            text = page.read().decode()
        lines = re.findall(
            r'^tollgate_prepared_rows_total\{.*found="(\w+)".*\} (\S+)$', text, re.M
        )
        counts = {name: float(number) for name, number in lines}
        (ages,) = re.findall(
            r"^tollgate_prepared_age_seconds_count\{.*\} (\S+)$", text, re.M
        )
        return counts | {"ages": float(ages)}


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Form, Shop]]:
    """The shop in both forms. A busy machine's store may be late."""
    repository = tmp_path_factory.mktemp("shop") / "model_repository"
    write_ranked_shop(repository)
    config = repository / "shop_candidates/config.pbtxt"
    config.write_text(
        config.read_text().replace('string_value: "20"', 'string_value: "5000"')
    )
    policy = repository / "shop_ranking" / "1" / POLICY_FILE
    text = policy.read_text().replace(
        "  items: 5\n", "  items: 5\n  stock: out_of_stock\n"
    )
    policy.write_text(text)
    release = repository / "shop" / "release.json"
    content = json.loads(release.read_text())
    (place,) = [one for one in content["hashes"] if one.endswith(POLICY_FILE)]
    content["hashes"][place] = hash_file(policy)
    release.write_text(json.dumps(content))
    with ExitStack() as stack:
        yield {
            form: Shop(
                repository,
                open_ranking_release(repository, "shop"),
                stack.enter_context(
                    serve(
                        repository,
                        products=["shop"],
                        state=repository.parent / form,
                        form=form,
                    )
                ),
            )
            for form in FORMS
        }


def sources(answer: dict[str, Any], row: int = 0) -> set[str]:
    """Return the sources of a list."""
    return {one.decode() for one in answer["source"][row].tolist()}


def is_prepared(answer: dict[str, Any], row: int = 0) -> bool:
    """Return whether a list was prepared; its items agree on that."""
    (found,) = {one.startswith("prepared:") for one in sources(answer, row)}
    return found


@pytest.mark.parametrize("form", FORMS)
def test_a_hit_has_the_bits_of_a_miss(shops: dict[Form, Shop], form: Form) -> None:
    shop = shops[form]
    users = [f"ann-{at}" for at in range(9)]
    for at, user in enumerate(users):
        items = [f"i{(at * 7 + step * 3) % 60}" for step in range(at % 5 + 1)]
        shop.view(user, *items, action=("view", "cart")[at % 2])
    missed = shop.ask(*users, count=20)
    shop.prepare(*users[:-1])
    for asked in (users, users[:-1], users[-1:], users[::-1]):
        answer = shop.ask(*asked, count=20)
        for row, user in enumerate(asked):
            was = {name: one[users.index(user)] for name, one in missed.items()}
            now = {name: one[row] for name, one in answer.items()}
            if user != users[-1]:
                assert is_prepared(answer, row)
                prefix = b"prepared:"
                now["source"] = np.array(
                    [one.removeprefix(prefix) for one in now["source"]], np.object_
                )
            assert as_bytes(now) == as_bytes(was)


@pytest.mark.parametrize("form", FORMS)
def test_a_purchase_ends_a_prepared_list(shops: dict[Form, Shop], form: Form) -> None:
    shop = shops[form]
    shop.view("bob", "i3", "i8")
    shop.prepare("bob")
    first = shop.ask("bob")
    assert is_prepared(first)
    bought = first["items"][0, 0].decode()
    shop.view("bob", bought, action="purchase", newest_s=5)
    second = shop.ask("bob", count=50)
    assert not is_prepared(second)
    assert bought.encode() not in second["items"][0].tolist()
    shop.prepare("bob")
    third = shop.ask("bob", count=50)
    assert is_prepared(third)
    assert third["items"].tolist() == second["items"].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_an_event_that_came_late_ends_it_too(
    shops: dict[Form, Shop], form: Form
) -> None:
    """The newest event is the same, an older one is new."""
    shop = shops[form]
    spec = shop.release.spec
    write_events(shop.server, spec, [("kim", "i3", "view", 10)])
    shop.prepare("kim")
    assert is_prepared(shop.ask("kim"))
    write_events(shop.server, spec, [("kim", "i4", "purchase", 500)])
    answer = shop.ask("kim", count=50)
    assert not is_prepared(answer)
    assert b"i4" not in answer["items"][0].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_stock_and_exclusions_count_when_it_is_served(
    shops: dict[Form, Shop], form: Form
) -> None:
    shop = shops[form]
    shop.view("eve", "i3", "i8")
    shop.prepare("eve")
    items = [one.decode() for one in shop.ask("eve", count=6)["items"][0].tolist()]
    sold, unwanted = items[0], items[1]
    answer = shop.ask("eve", count=50, exclude=[unwanted])
    assert is_prepared(answer)
    shown = [one.decode() for one in answer["items"][0].tolist()]
    assert sold in shown
    assert unwanted not in shown
    with redis.Redis.from_url(shop.server.store_url) as store:
        store.sadd(STOCK, sold)
        until_s = time.monotonic() + PATIENCE_S
        while sold.encode() in shop.ask("eve", count=50)["items"][0].tolist():
            assert time.monotonic() < until_s
            time.sleep(0.05)
        answer = shop.ask("eve", count=50, exclude=[unwanted])
        store.srem(STOCK, sold)
    assert is_prepared(answer)
    assert not {sold.encode(), unwanted.encode()} & set(answer["items"][0].tolist())
    until_s = time.monotonic() + PATIENCE_S
    while sold.encode() not in shop.ask("eve", count=50)["items"][0].tolist():
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.parametrize("form", FORMS)
def test_a_list_that_does_not_hold_is_not_served(
    shops: dict[Form, Shop], form: Form
) -> None:
    """Each reason has its count, and the list is the one without anything prepared."""
    shop = shops[form]
    before = shop.found()
    shop.view("zoe", "i3", "i8", newest_s=3 * 3_600)
    plain = as_bytes(shop.ask("zoe"))  # none

    def still_plain() -> bool:
        return as_bytes(shop.ask("zoe")) == plain

    other = msgspec.structs.replace(shop.release, ranker=shop.release.ranker ^ 1)
    shop.prepare("zoe", release=other)
    assert still_plain()
    for made_us in (NOW_US - 2 * HOUR_US, NOW_US + 2 * HOUR_US):
        shop.prepare("zoe", made_us=made_us)
        assert still_plain()
    shop.prepare("zoe")
    assert is_prepared(shop.ask("zoe"))
    key = prepared_key("shop", b"zoe")
    with redis.Redis.from_url(shop.server.store_url) as store:
        whole = store.get(key)
        for damaged in (whole[:-1], whole[:10], b"x", whole[:50] + b"!" + whole[51:]):
            store.set(key, damaged)
            assert still_plain()
        store.delete(key)
        store.sadd(key, "of another type")
        assert still_plain()
        store.delete(key)
    shop.prepare("zoe")
    for _ in range(3):
        assert is_prepared(shop.ask("zoe", "zoe"))
    shop.view("zoe", "i9", newest_s=5)
    assert not is_prepared(shop.ask("zoe"))
    now = shop.found()
    risen = {name: now[name] - before[name] for name in now}
    assert risen == {
        "hit": 7,
        "unread": 0,
        "none": 2,  # MGET answers as if a key of another type were absent
        "damaged": 4,
        "other_release": 1,
        "expired": 2,
        "other_events": 1,
        "canary": 0,
        "ages": 7,
    }


@pytest.mark.parametrize("form", FORMS)
def test_the_command_prepares_the_most_active_users(
    shops: dict[Form, Shop], form: Form, tmp_path: Path
) -> None:
    shop = shops[form]
    for at in range(1, 6):
        shop.view(f"rank-{at}", *(f"i{step}" for step in range(10 + at)))
    store = open_store(shop.server.store_url, deadline_s=10.0)
    every = most_active_users(shop.release.spec, store, 1_000, now_us=NOW_US)
    store.close()
    ranked = [one for one in every if one.startswith(b"rank-")]
    assert ranked == [b"rank-5", b"rank-4", b"rank-3", b"rank-2", b"rank-1"]
    file = tmp_path / "users.txt"
    file.write_text("rank-2\n\nnobody\nrank-2\n")
    common = (
        *("materialize", "--lists", "--product", "shop"),
        *("--repository", str(shop.repository), "--store-url", shop.server.store_url),
    )
    runner = CliRunner()
    done = runner.invoke(app, [*common, "--users-from", str(file), "--json"])
    assert done.exit_code == 0, done.output
    lists = json.loads(done.stdout)["lists"]
    size = lists.pop("bytes")
    assert lists == {"users": 2, "prepared": 1, "fresh": 0, "without_events": 1}
    with redis.Redis.from_url(shop.server.store_url) as client:
        key = prepared_key("shop", b"rank-2")
        assert client.strlen(key) == size
        # Twice the life, which is an hour, a fifth more or less.
        assert 2 * 0.79 * 3_600 < client.ttl(key) <= 2 * 1.2 * 3_600
        assert not client.exists(prepared_key("shop", b"rank-5"))
        assert not client.exists(prepared_key("shop", b"nobody"))
        done = runner.invoke(app, [*common, "--users", str(len(every)), "--rate", "0"])
        assert done.exit_code == 0, done.output
        # All but rank-2 and those that other tests have prepared.
        (users, made, held) = re.findall(r"([\d,]+) (?:users|lists|still)", done.stdout)
        assert int(users) == len(every) == int(made) + int(held)
        assert int(held) >= 1
        assert client.exists(prepared_key("shop", b"rank-5"))
    answer = shop.ask("rank-2", "rank-5")
    assert is_prepared(answer, 0)
    assert is_prepared(answer, 1)


@pytest.mark.parametrize("form", FORMS)
def test_a_run_makes_again_what_will_not_hold(
    shops: dict[Form, Shop], form: Form
) -> None:
    """New events, half of a life, other files, damage; all else stays."""
    shop = shops[form]
    users = [f"again-{at}" for at in range(40)]
    for user in users:
        shop.view(user, "i3", "i8", newest_s=3 * 3_600)
    store = open_store(shop.server.store_url, deadline_s=10.0)
    names = [one.encode() for one in users]

    def run(made_us: int, ranker: int = shop.release.ranker) -> tuple[int, int]:
        done = prepare_lists(
            msgspec.structs.replace(shop.release, ranker=ranker),
            store,
            names,
            life_us=HOUR_US,
            wall_us=lambda: made_us,
        )
        return done.prepared, done.fresh

    assert run(NOW_US) == (40, 0)
    assert run(NOW_US) == (0, 40)
    shop.view(users[2], "i9", newest_s=5)
    with redis.Redis.from_url(shop.server.store_url) as client:
        client.append(prepared_key("shop", names[5]), "x")
    assert run(NOW_US + 60_000_000) == (2, 38)
    # Lives are 48 to 72 minutes.
    early = run(NOW_US + 23 * 60_000_000)
    assert early == (0, 40)
    some = run(NOW_US + 30 * 60_000_000)[0]
    assert 5 < some < 35
    assert run(NOW_US + 37 * 60_000_000, shop.release.ranker ^ 1) == (40, 0)
    store.close()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--lists"], "--lists: needs either --users N or --users-from FILE"),
        (["--users", "5"], "--users: is for --lists"),
        (
            ["--lists", "--users", "5", "some.parquet"],
            "--lists: reads the store: it takes no history, --spec, --copy-from or "
            "--table",
        ),
        (["--lists", "--users-from", "absent"], "absent: cannot be read: No such file"),
    ],
)
def test_wrong_words_are_one_line(
    shops: dict[Form, Shop], words: list[str], problem: str
) -> None:
    shop = shops["fused"]
    done = CliRunner().invoke(
        app,
        [
            *("materialize", "--product", "shop", *words),
            *("--repository", str(shop.repository)),
            *("--store-url", shop.server.store_url),
        ],
    )
    assert done.exit_code != 0
    assert problem in str(done.exception)
