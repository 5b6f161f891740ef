"""A challenger's ranker answers a share of the users, in its own name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from msgspec import structs

from tests.support.products.small_shop import (
    release_shop,
    write_linear_model,
    write_shop,
)
from tests.tollgate.server.test_ranking_served import (
    BY_POPULARITY,
    FORMS,
    ask,
    write_events,
)
from tollgate.engine.decision_stage import in_share
from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.ranking.ranking_record import RankingRecord, decode_ranking
from tollgate.repository.hashes import hash_version
from tollgate.repository.releases.release_file import (
    Challenger,
    Release,
    read_release,
)
from tollgate.repository.releases.serving_plan import plan_serving
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.serving.embedded import Embedded, serve

pytestmark = pytest.mark.slow

SEED = 11
USERS = [f"user-{one}" for one in range(60)]
PATIENCE_S = 120.0
CHAMPION, CHALLENGER = BY_POPULARITY[:4], BY_POPULARITY[:-5:-1]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop whose second model prefers the least popular items."""
    folder = tmp_path_factory.mktemp("canary") / "model_repository"
    spec = write_shop(folder)
    config = folder / "shop_candidates/config.pbtxt"
    config.write_text(
        config.read_text().replace('string_value: "20"', 'string_value: "5000"')
    )
    release_shop(folder, spec)
    second = folder / "shop_model/2"
    second.mkdir()
    write_linear_model(second, spec, weights={"popularity": -1.0})
    return folder


@pytest.fixture(scope="module", params=FORMS)
def served(repository: Path, request: pytest.FixtureRequest) -> Iterator[Embedded]:
    """A server in each form for the tests of this module."""
    state = repository.parent / request.param
    spec = load_spec(repository / "shop_candidates/1" / SPEC_FILE)
    with serve(
        repository, products=["shop"], state=state, form=request.param
    ) as server:
        # The model ranks for users of whom an event is known.
        write_events(server, spec, [(user, "i2", "view", 9) for user in USERS])
        yield server


def go(
    served: Embedded, repository: Path, *, percent: float, interleaved: bool = False
) -> None:
    """Let the server have a challenger."""
    release = read_release(repository, product="shop")
    challenger = Challenger(
        release="shop-2",
        versions={**release.versions, "shop_model": 2},
        spec_hash=release.spec_hash,
        mode="canary",
        percent=percent,
        seed=SEED,
        interleaved=interleaved,
        actor="test",
        reason="test",
        time="2026-01-01T00:00:00Z",
    )
    hashes = release.hashes | hash_version(repository, "shop_model", version=2)
    switch(
        served,
        repository,
        structs.replace(release, challenger=challenger, hashes=hashes),
    )


def switch(served: Embedded, repository: Path, release: Release) -> None:
    """Let the server serve a release."""
    serving = served.serving["shop"]
    plan = plan_serving(RepositorySnapshot(repository), release, form=serving.form)
    serving.switch(plan, progress=lambda _: None)


def records_of(
    served: Embedded, prefix: str, *, count: int
) -> dict[str, RankingRecord]:
    """Wait for the records of requests: their release and id -> record."""
    until_s = time.monotonic() + PATIENCE_S
    found: dict[str, RankingRecord] = {}
    with redis.Redis.from_url(served.store_url) as store:
        while len(found) < count:
            assert time.monotonic() < until_s, len(found)
            for _, entry in store.xrange(stream_key("shop")):
                if CHUNK_FIELD not in entry:
                    continue
                chunk = decode_chunk(entry[CHUNK_FIELD])
                found |= {
                    f"{chunk.release} {name.decode()}": decode_ranking(details)
                    for name, details in zip(
                        chunk.transaction_id, chunk.details, strict=True
                    )
                    if name.startswith(prefix.encode())
                }
    return found


def test_a_share_of_the_users_gets_the_challengers_lists(
    served: Embedded, repository: Path
) -> None:
    """Those of the share; each record stands under the release that ranked."""
    encoded = [one.encode() for one in USERS]
    for percent in (0.0, 30.0, 100.0):
        go(served, repository, percent=percent)
        prefix = f"c{percent:g}-"
        ids = [prefix + user for user in USERS]
        answers = [
            ask(served, USERS[at : at + 20], ids=ids[at : at + 20])
            for at in (0, 20, 40)
        ]
        chosen = in_share(encoded, percent=percent, seed=SEED).tolist()
        items = [row for one in answers for row in one["items"].tolist()]
        names = [row for one in answers for row in one["release"][:, 0].tolist()]
        assert items == [CHALLENGER if one else CHAMPION for one in chosen]
        assert names == [b"shop-2" if one else b"shop-1" for one in chosen]
        records = records_of(served, prefix, count=len(USERS))
        assert set(records) == {
            f"{name.decode()} {one}" for name, one in zip(names, ids, strict=True)
        }
        for name, one, row in zip(names, ids, items, strict=True):
            shown = records[f"{name.decode()} {one}"].ranked.items.tolist()
            assert [f"i{at}".encode() for at in shown] == row
    assert 0 < sum(in_share(encoded, percent=30.0, seed=SEED).tolist()) < len(USERS)


def test_a_share_of_the_requests_is_interleaved(
    served: Embedded, repository: Path
) -> None:
    """By request id; the record says whose pick each item is, once, as the answer."""
    go(served, repository, percent=40.0, interleaved=True)
    ids = [f"i{one}-{user}" for one, user in enumerate(USERS)]
    share = in_share([one.encode() for one in ids], percent=40.0, seed=SEED).tolist()
    assert 0 < sum(share) < len(ids)
    lists = []
    for at in (0, 20, 40):
        answer = ask(served, USERS[at : at + 20], ids=ids[at : at + 20])
        assert set(answer["release"][:, 0].tolist()) == {b"shop-1"}
        lists += answer["items"].tolist()
    records = records_of(served, "i", count=len(ids))
    assert set(records) == {f"shop-1 {one}" for one in ids}
    begun = set()
    for name, items, mixed in zip(ids, lists, share, strict=True):
        record = records[f"shop-1 {name}"]
        if not mixed:
            assert items == CHAMPION
            assert (record.ranked.teams, record.challenger) == (None, "")
            continue
        assert record.ranked.teams is not None
        teams = record.ranked.teams.tolist()
        orders = {1: list(BY_POPULARITY), 2: BY_POPULARITY[::-1]}
        drafted: list[bytes] = []
        for team in teams:
            drafted.append(next(one for one in orders[team] if one not in drafted))
        assert drafted == items
        assert [sorted(teams[:2]), sorted(teams[2:])] == [[1, 2], [1, 2]]
        assert record.challenger == "shop-2"
        begun.add(teams[0])
        repeated = ask(served, USERS[:1], ids=[name], dry_run=True)
        assert repeated["items"].tolist() == [items]
    assert begun == {1, 2}


def test_without_a_challenger_nothing_of_it_is_left(
    served: Embedded, repository: Path
) -> None:
    switch(served, repository, read_release(repository, product="shop"))
    answer = ask(served, USERS[:32], ids=[f"n-{one}" for one in USERS[:32]])
    assert answer["items"].tolist() == [CHAMPION] * 32
    assert set(answer["release"][:, 0].tolist()) == {b"shop-1"}
