"""Events count for the release that picked the item, and users are the units."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from tests.support.audit.random_records import REPOSITORY
from tests.support.audit.ranked_records import (
    catalogue_of,
    ranked,
    write_ranked_shop,
)
from tests.support.monitor.sealed_journals import Sealed
from tests.support.products.small_shop import (
    release_shop,
    write_linear_model,
    write_shop,
)
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.past_release import open_release
from tollgate.audit.review.list_responses import ItemEvents
from tollgate.challenger.interleaving import (
    DraftedItems,
    InterleavingReport,
    compare_interleaved,
    preferences_of,
)
from tollgate.challenger.intervals import share, sign_test
from tollgate.challenger.shadow_scoring import Scorer
from tollgate.cli.app import app
from tollgate.errors import InputError
from tollgate.journal.decision_record import Records
from tollgate.ranking.rank import bind_rules, rank_row
from tollgate.ranking.ranking_record import (
    decode_ranking,
    encode_ranking,
    replay_input,
)
from tollgate.repository.releases.release_file import read_release

HOUR_US = 3_600_000_000
ROWS = 600


def test_the_sign_test_is_that_of_fair_coins() -> None:
    """By hand: of 8 users 7 for one side: 2 (1 + 8) / 256; and of none, nothing."""
    assert sign_test(7, 1) == sign_test(1, 7) == 18 / 256
    assert sign_test(5, 0) == 2 / 32
    assert sign_test(4, 4) == 1.0
    assert sign_test(0, 0) == 1.0
    chance = np.random.default_rng(1)
    heads = chance.binomial(60, 0.5, 200_000)
    extreme = float((np.abs(heads - 30) >= 10).mean())
    assert sign_test(40, 20) == pytest.approx(extreme, rel=0.1)
    assert 0.15 < sign_test(10_100, 9_900) < 0.17  # normal: 2 (1 - Phi(1.407))


def test_events_count_for_the_newest_list_that_showed_the_item() -> None:
    """Counted by hand; an item of a list counts once, a late event not at all."""
    drafted = DraftedItems(
        users=["ann", "ann", "ann", "bob", "bob", "cat"],
        items=["x", "y", "x", "x", "y", "x"],
        time_us=np.array([0, 0, 10, 0, 0, 0]) * HOUR_US,
        teams=np.array([1, 2, 2, 1, 2, 1], np.uint8),
    )
    rows = [
        ("ann", "x", 2, 0),  # the first list: the champion's
        ("ann", "x", 3, 0),  # again
        ("ann", "x", 11, 2),  # the second list: the challenger's
        ("ann", "y", 1, 0),  # the challenger's
        ("bob", "x", 1, 0),  # the champion's
        ("bob", "y", 1, 0),  # the challenger's: a tie
        ("cat", "x", 24, 0),  # too late
        ("cat", "y", 1, 0),  # was not shown
        ("dan", "x", 1, 0),  # got no list
        ("cat", "x", -1, 0),  # before the list
    ]
    users, items, hours, actions = zip(*rows, strict=True)
    events = ItemEvents(
        users=users,
        items=items,
        time_us=np.array(hours) * HOUR_US,
        actions=np.array(actions, np.int8),
    )
    every, views, purchases = preferences_of(drafted, events, within_s=86_400)
    assert (every.action, every.champion, every.challenger) == ("any", 2, 3)
    assert (every.wins, every.losses, every.ties) == (1, 0, 1)
    assert (views.action, views.champion, views.challenger) == ("view", 2, 2)
    assert (views.wins, views.losses, views.ties) == (0, 0, 2)
    assert (purchases.action, purchases.wins, purchases.p_value) == ("purchase", 1, 1.0)
    assert purchases.share == share(1, 1)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sealed, Records, Path]:
    """Sealed lists of 150 users, half of them interleaved with a random challenger."""
    state = tmp_path_factory.mktemp("state")
    release = write_ranked_shop(state / "models")
    rules = release.policy.ranking
    assert rules is not None
    catalogue = catalogue_of()
    bound = bind_rules(rules, catalogue)
    records = ranked(ROWS, by=release)
    chance = np.random.default_rng(5)
    details = []
    for row, raw in enumerate(records.details):
        record = decode_ranking(raw)
        if row % 2:
            given = replay_input(record, items=catalogue.size)
            rival = chance.normal(size=len(given.candidates)).astype(np.float32)
            given = msgspec.structs.replace(given, rival=rival)
            record = msgspec.structs.replace(
                record, given=given, ranked=rank_row(given, bound), challenger="shop-2"
            )
        details.append(encode_ranking(record))
    names = [f"user-{one}".encode() for one in chance.integers(0, 150, ROWS)]
    records = msgspec.structs.replace(records, details=details, entity_id=[names])
    sealed = Sealed(state, product="shop", repository=state / "models")
    sealed.seal(records)
    return sealed, records, state


def clicks(records: Records) -> pl.DataFrame:
    """Let users click every item that the challenger picked, a minute later."""
    ids = catalogue_of().item_ids
    rows = []
    for row, raw in enumerate(records.details):
        ranked = decode_ranking(raw).ranked
        if ranked.teams is None:
            continue
        for item, team in zip(
            ranked.items.tolist(), ranked.teams.tolist(), strict=True
        ):
            if team == 2:
                at_us = int(records.event_time_us[row]) + 60_000_000
                user = records.entity_id[0][row].decode()
                rows.append((user, ids[item].decode(), at_us, "view"))
    return pl.DataFrame(rows, schema=["who", "what", "when", "how"], orient="row")


def events_of(table: pl.DataFrame) -> ItemEvents:
    """Convert a table."""
    return ItemEvents(
        users=table["who"].to_list(),
        items=table["what"].to_list(),
        time_us=table["when"].to_numpy(),
        actions=np.zeros(len(table), np.int8),
    )


def test_a_journal_says_whom_its_users_prefer(
    journal: tuple[Sealed, Records, Path],
) -> None:
    """Through pseudonyms; with every user for the challenger, or for none."""
    sealed, records, _ = journal
    table = clicks(records)

    def compare(events: ItemEvents, challenger: str = "") -> InterleavingReport:
        return compare_interleaved(
            sealed.chain,
            ReleaseArchive(sealed.chain),
            repository=None,
            challenger=challenger,
            events=events,
            subjects=sealed.subjects,
            within_s=86_400,
        )

    found = compare(events_of(table))
    lists = [decode_ranking(one).ranked.teams is not None for one in records.details]
    who = {records.entity_id[0][row] for row, mixed in enumerate(lists) if mixed}
    assert (found.champion, found.challenger) == ("shop-1", "shop-2")
    assert (found.lists, found.users) == (sum(lists), len(who))
    every, views = found.preferences
    assert every.wins > 0.9 * len(who)
    assert every.wins == views.wins
    assert every.p_value < 1e-12
    assert every.share.low > 0.9
    # Clicks of strangers, and of other days, say nothing.
    others = table.with_columns(pl.col("who") + "-x")
    later = table.with_columns(pl.col("when") + 30 * 24 * HOUR_US)
    for strange in (others, later):
        (nothing, *_) = compare(events_of(strange)).preferences
        assert (nothing.wins, nothing.losses, nothing.champion) == (0, 0, 0)
    with pytest.raises(InputError, match="no interleaved list of shop-9"):
        compare(events_of(table), "shop-9")


def test_the_command_reports_it(journal: tuple[Sealed, Records, Path]) -> None:
    """From a file; a missing column is refused in one line."""
    sealed, records, state = journal
    path = state / "clicks.parquet"
    clicks(records).write_parquet(path)
    chosen = [
        *("challenger", "report", "--product", "shop", "--state", str(state)),
        *("--repository", str(state / "models"), "--events", str(path)),
        *("--folder", str(sealed.folder)),
    ]
    columns = ["--user", "who", "--item", "what", "--time", "when", "--action", "how"]
    done = CliRunner().invoke(app, [*chosen, *columns])
    assert done.exit_code == 0, done.output
    assert "interleaved: shop-2 with shop-1; 299 lists of" in done.output  # one: NaN
    shown = CliRunner().invoke(app, [*chosen, *columns, "--json"])
    report = msgspec.json.decode(shown.stdout)
    assert [one["action"] for one in report["preferences"]] == ["any", "view"]
    for words, problem in (
        ([*chosen, *columns[:4]], "--events: needs --user, --item and --time"),
        ([*chosen[:-4], *columns], "--user: goes with --events"),
    ):
        refused = CliRunner().invoke(app, words)
        assert problem in str(refused.exception)


def test_the_worker_ranks_an_interleaved_record_without_the_draft(
    journal: tuple[Sealed, Records, Path],
) -> None:
    """Its best item is that of one release alone, not of both."""
    _, records, state = journal
    release = open_release(
        "shop-1", archived=None, repository=state / "models", product="shop"
    )
    scored = Scorer(release, release).score(records)
    alone = ranked(ROWS, by=release)
    np.testing.assert_array_equal(scored.other.score, alone.score)


def test_only_a_canary_of_a_product_that_ranks_is_interleaved(tmp_path: Path) -> None:
    """Release.json says so; a shadow and a product that decides are refused."""
    models = tmp_path / "models"
    spec = write_shop(models)
    release_shop(models, spec)
    (models / "shop_model/2").mkdir()
    write_linear_model(models / "shop_model/2", spec, weights={"popularity": -1.0})
    command = ["challenger", "start", "--set", "model=2", "--reason", "a test"]
    command += ["--repository", str(models), "--state", str(tmp_path), "--wait", "0"]
    shop = [*command, "--product", "shop", "--interleave", "--force"]
    refused = CliRunner().invoke(app, [*shop, "--mode", "shadow"])
    assert "--interleave: a shadow answers nobody" in str(refused.exception)
    canary = ["--mode", "canary", "--percent", "20"]
    done = CliRunner().invoke(app, [*shop, *canary])
    assert done.exit_code == 0, done.output
    assert "shop-2, canary, 20 % of requests, interleaved" in done.output
    challenger = read_release(models, product="shop").challenger
    assert challenger is not None
    assert (challenger.interleaved, challenger.percent) == (True, 20.0)
    fraud = tmp_path / "fraud"
    shutil.copytree(REPOSITORY, fraud, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(fraud / "fraud_model/1", fraud / "fraud_model/2")
    command[command.index(str(models))] = str(fraud)
    words = [*command, "--product", "fraud", "--interleave", "--force", *canary]
    refused = CliRunner().invoke(app, words)
    assert "fraud decides: only lists can be interleaved" in str(refused.exception)
    assert read_release(fraud, product="fraud").challenger is None
