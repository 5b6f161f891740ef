"""Estimates of other policies are those of plain arithmetic, and cover the truth."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from tests.support.audit.ranked_records import (
    POLICY,
    catalogue_of,
    ranked,
    write_ranked_shop,
)
from tollgate.audit.chain.chain import Chain
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.off_policy import (
    Positions,
    estimate,
    estimate_lists,
)
from tollgate.audit.releases.past_release import OpenedRelease
from tollgate.audit.review.list_responses import ItemEvents
from tollgate.audit.worker.pseudonyms import Subjects
from tollgate.audit.worker.sealing import Sealer
from tollgate.cli.app import app
from tollgate.errors import InputError
from tollgate.journal.decision_record import Records
from tollgate.policy.decision_tables import ConditionTable
from tollgate.policy.ranking_rules import Exploration, RankingRules
from tollgate.ranking.draws import seed_of
from tollgate.ranking.rank import RankingInput, bind_rules, rank_row
from tollgate.ranking.ranking_record import decode_ranking

HOUR_US = 3_600_000_000
NOTHING = np.zeros(0, np.int32)


def later(*events: tuple[str, str, int, int]) -> ItemEvents:
    """Make events: user, item, time in µs, action."""
    return ItemEvents(
        users=[user for user, *_ in events],
        items=[item for _, item, *_ in events],
        time_us=np.array([time for *_, time, _ in events], np.int64),
        actions=np.array([action for *_, action in events], np.int8),
    )


# Three lists of two positions: the first two of user u, the last of user v.
THREE = Positions(
    list_index=np.array([0, 0, 1, 1, 2, 2]),
    users=["u", "u", "v"],
    time_us=np.array([0, 1_000, 2_000]),
    items=["a", "b", "a", "c", "b", "c"],
    propensities=np.array([0.5, 0.25, 0.5, 0.8, 0.4, 1.0]),
    before=None,
    after=np.array([True, True, False, True, True, False]),
)


def test_three_records_by_hand() -> None:
    # u clicks a after both lists had it: it is the newer one's, whose item at this
    # position the new policy would not show. b and c of u count; so does v's b.
    events = later(
        ("u", "a", 1_500, 0),
        ("u", "b", 500, 0),
        ("u", "c", 1_000, 2),
        ("v", "b", 2_500, 0),
    )
    found = estimate(THREE, events, within_s=0.002, left_out={})
    # Weights 1/p where both show the same: 2, 4, 0, 1.25, 2.5, 0.
    assert found.mean_weight == pytest.approx(9.75 / 6)
    assert found.same_positions == pytest.approx(4 / 6)
    assert found.effective_sample_size == pytest.approx(
        9.75**2 / (2**2 + 4**2 + 1.25**2 + 2.5**2)
    )
    either, view, purchase = found.actions
    assert [one.action for one in found.actions] == ["any", "view", "purchase"]
    assert either.before.value == pytest.approx(4 / 3)
    assert either.after.value == pytest.approx((4 + 1.25 + 2.5) / 3)
    assert view.after.value == pytest.approx((4 + 2.5) / 3)
    assert purchase.after.value == pytest.approx(1.25 / 3)
    # Sums of the users less the mean of their lists: two users, so their factor is 2.
    mean = 7.75 / 3
    rest = (5.25 - 2 * mean, 2.5 - mean)
    variance = (rest[0] ** 2 + rest[1] ** 2) / 9 * 2
    assert either.after.variance == pytest.approx(variance)
    half = 1.959964 * math.sqrt(variance)
    assert either.after.high == pytest.approx(mean + half)
    # Responses per weight, times two positions per list.
    share = 7.75 / 9.75
    assert either.self_normalized.value == pytest.approx(share * 2)
    rest = (5.25 - share * 7.25, 2.5 - share * 2.5)
    variance = (rest[0] ** 2 + rest[1] ** 2) * 2**2 / 9.75**2 * 2
    assert either.self_normalized.variance == pytest.approx(variance)
    assert either.difference.value == pytest.approx((7.75 - 4) / 3)


@pytest.mark.parametrize(
    ("event", "responses"),
    [
        (("u", "b", 0, 0), 1),  # at the time of the list
        (("u", "b", 1_999, 0), 1),
        (("u", "b", 2_000, 0), 0),  # after the window
        (("u", "c", 999, 0), 0),  # before the list that has it
        (("w", "b", 500, 0), 0),  # of another user
        (("u", "d", 500, 0), 0),  # not in the list
    ],
)
def test_an_event_within_the_window_is_a_response(
    event: tuple[str, str, int, int], responses: int
) -> None:
    found = estimate(THREE, later(event), within_s=0.002, left_out={})
    assert found.actions[0].before.value == pytest.approx(responses / 3)


def rules_of(*, diversity: float, exploration: Exploration | None) -> RankingRules:
    return RankingRules(
        items=5,
        diversity=diversity,
        exploration=exploration,
        bought_s=0,
        seen_s=0,
        stock="",
        rules=(),
        tables=ConditionTable([], []),
    )


def test_the_interval_covers_the_known_value() -> None:
    """Clicks with known probabilities; the true value follows from these."""
    lists, users, shows = 240, 60, 5
    rng = np.random.default_rng(8)
    catalogue = catalogue_of()
    exploration = Exploration(share=0.6, pool=5, first=1, salt="")
    shown_by = bind_rules(rules_of(diversity=0, exploration=exploration), catalogue)
    other = bind_rules(rules_of(diversity=0.5, exploration=None), catalogue)
    notice = 1 / (1 + 0.15 * np.arange(shows))
    likes = rng.random((users, 60)) ** 2
    requests = []
    for number in range(lists):
        likely = likes[number % users]
        candidates = rng.permutation(60)[:10].astype(np.int32)
        requests.append(
            RankingInput(
                count=shows,
                seed=b"",
                in_force=0,
                candidates=candidates,
                sources=np.zeros(10, np.uint8),
                relevance=(likely[candidates] + rng.normal(0, 0.5, 10)).astype("f4"),
                history_items=NOTHING,
                history_actions=NOTHING.astype(np.int8),
                history_age_s=NOTHING.astype(np.float64),
                excluded=NOTHING,
                available=np.ones(60, np.bool_),
                fill=NOTHING,
            )
        )
    wanted = np.array([rank_row(one, other).items for one in requests])
    of_list = np.arange(lists) % users
    truth = float((likes[of_list[:, None], wanted] * notice).sum() / lists)
    covered = covered_normalized = 0
    values, weights = [], []
    times = 40
    for time in range(times):
        shown, propensities = [], []
        for number, one in enumerate(requests):
            seed = seed_of(b"%d-%d" % (time, number))
            found = rank_row(msgspec.structs.replace(one, seed=seed), shown_by)
            shown.append(found.items)
            propensities.append(found.propensities)
        items = np.array(shown)
        chance = likes[of_list[:, None], items] * notice
        row, place = np.nonzero(rng.random(items.shape) < chance)
        positions = Positions(
            list_index=np.repeat(np.arange(lists), shows),
            users=[f"u{one}" for one in of_list],
            time_us=np.arange(lists) * HOUR_US,
            items=[f"i{one}" for one in items.ravel()],
            propensities=np.array(propensities, np.float64).ravel(),
            before=None,
            after=(items == wanted).ravel(),
        )
        events = ItemEvents(
            users=[f"u{one}" for one in of_list[row]],
            items=[f"i{one}" for one in items[row, place]],
            time_us=row * HOUR_US + 60_000_000,
            actions=np.zeros(len(row), np.int8),
        )
        estimated = estimate(positions, events, within_s=1_800, left_out={})
        one = estimated.actions[0]
        assert one.before.value == pytest.approx(len(row) / lists)
        weights.append(estimated.mean_weight)
        values.append(one.after.value)
        covered += one.after.low <= truth <= one.after.high
        normalized = one.self_normalized
        covered_normalized += normalized.low <= truth <= normalized.high
    assert covered >= 0.85 * times
    assert covered_normalized >= 0.85 * times
    error = np.std(values, ddof=1) / math.sqrt(times)
    assert abs(np.mean(values) - truth) < 4 * error
    # Every candidate is in the list or the pool, so exploration can show it.
    weight_error = np.std(weights, ddof=1) / math.sqrt(times)
    assert abs(np.mean(weights) - 1) < 4 * weight_error
    # The lists differ from those shown, so that this is worth the test.
    assert abs(one.before.value - truth) > 5 * error


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> OpenedRelease:
    return write_ranked_shop(tmp_path_factory.mktemp("shop") / "models")


def sealed(records: Records, folder: Path, repository: Path) -> Chain:
    """Seal records into a journal of the shop."""
    chain = Chain(folder / "journal", product="shop")
    Sealer(
        chain,
        subjects=Subjects(folder / "journal.keys"),
        releases=ReleaseArchive(chain, repository=repository),
    ).seal([records])
    return chain


def clicks_on_all(records: Records) -> ItemEvents:
    """Make an event with each item of each list, at the time of the list."""
    names = catalogue_of().item_ids
    events = [
        (user.decode(), names[item].decode(), int(time_us), 0)
        for user, time_us, detail in zip(
            records.entity_id[0], records.event_time_us, records.details, strict=True
        )
        for item in decode_ranking(detail).ranked.items.tolist()
        if item >= 0
    ]
    return later(*events)


def repository_of(release: OpenedRelease) -> Path:
    return release.files.path("model.onnx").parents[2]


def test_the_served_policy_shows_its_own_items(
    tmp_path: Path, release: OpenedRelease
) -> None:
    """Without its exploration; row 5 has no relevance, and so no exploration."""
    records = ranked(120, by=release)
    chain = sealed(records, tmp_path, repository_of(release))
    found = estimate_lists(
        chain,
        ReleaseArchive(chain),
        repository=repository_of(release),
        new=release.policy,
        old=release.policy,
        events=clicks_on_all(records),
        subjects=Subjects(tmp_path / "journal.keys"),
        within_s=60,
    )
    lists = [decode_ranking(one).ranked for one in records.details]
    explored = [one for one in lists if (one.propensities != 1).any()]
    assert found.lists == len(explored)
    assert found.left_out == {"without exploration": 120 - len(explored)}
    # An item takes part in an exploration with its neighbours, and can come back.
    assert found.same_positions == pytest.approx(
        np.mean([~one.explored for one in explored])
    )
    weights = [(~one.explored / one.propensities).sum() for one in explored]
    (_, view) = found.actions
    assert view.after.value == pytest.approx(np.mean(weights), rel=1e-6)
    assert view.after.value == pytest.approx(found.mean_weight * 5)
    assert view.self_normalized.value == pytest.approx(5)
    assert view.difference.value == view.difference.variance == 0


@pytest.mark.slow
def test_the_command_estimates_from_a_journal(
    tmp_path: Path, release: OpenedRelease
) -> None:
    records = ranked(60, by=release)
    repository = repository_of(release)
    sealed(records, tmp_path, repository)
    (tmp_path / "new.yaml").write_text(POLICY.replace("weight: 0.2", "weight: 0.6"))
    events = clicks_on_all(records)
    lines = [
        f"{user},{item},{time_us}"
        for user, item, time_us in zip(
            events.users, events.items, events.time_us, strict=True
        )
    ]
    (tmp_path / "events.csv").write_text("\n".join(["who,what,at", *lines]))
    words = ["policy", "simulate", tmp_path / "new.yaml", "--on", tmp_path / "journal"]
    words += ["--events", tmp_path / "events.csv", "--user", "who", "--item", "what"]
    words += ["--time", "at", "--product", "shop", "--repository", repository]
    done = CliRunner().invoke(app, [str(one) for one in (*words, "--json")])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert 0 < found["same_positions"] < 1
    assert found["within_s"] == 86_400
    assert [one["action"] for one in found["actions"]] == ["any"]
    page = (Path(__file__).parents[4] / "docs" / "commands.md").read_text()
    (sentence,) = [
        line for line in page.splitlines() if line.startswith("With `--events`")
    ]
    for key in (*found, *found["actions"][0], *found["actions"][0]["after"]):
        assert f"`{key}`" in sentence
    done = CliRunner().invoke(app, [str(one) for one in words])
    assert done.exit_code == 0
    assert "responses per list" in done.stdout
    after = found["actions"][0]["after"]
    assert f"{after['low']:.3f}…{after['high']:.3f}" in done.stdout
    assert "effective sample size" in done.stdout


def test_without_exploration_there_is_no_estimate(
    tmp_path: Path, release: OpenedRelease
) -> None:
    rules = release.policy.ranking
    assert rules is not None
    plain = msgspec.structs.replace(
        release.policy, ranking=msgspec.structs.replace(rules, exploration=None)
    )
    records = ranked(10, by=msgspec.structs.replace(release, policy=plain))
    chain = sealed(records, tmp_path, repository_of(release))
    with pytest.raises(InputError, match="no list was explored, so no estimate") as no:
        estimate_lists(
            chain,
            ReleaseArchive(chain),
            repository=repository_of(release),
            new=release.policy,
            old=None,
            events=clicks_on_all(records),
            subjects=Subjects(tmp_path / "journal.keys"),
            within_s=60,
        )
    assert "10 without exploration" in str(no.value)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--user", "who"], "--user: goes with --events"),
        (["--events", "e.csv", "--user", "who"], "--events: needs --user, --item"),
    ],
)
def test_wrong_options_are_refused(words: list[str], problem: str) -> None:
    command = ["policy", "simulate", "new.yaml", "--on", "journal", *words]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, InputError)
    assert problem in str(done.exception)
