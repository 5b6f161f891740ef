"""A purchase that is sent again: the decision that was made, or a conflict."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.support.steps.in_process_steps import NOW_US, Pipeline, bought, request, use
from tollgate.schema import Degraded
from tollgate.store.stored_decisions import pack_stored_decision, stored_decision_key

pytestmark = pytest.mark.usefixtures("both_deciders")

REPOSITORY = Path(__file__).parents[3] / "model_repository"
WORDS = 'transaction_id: "%s": conflict: was decided with other content'
PATIENCE_S = 600.0
Open = Callable[..., Pipeline]
AGAIN = request(bought("t1"), bought("t2", customer="d", amount=900.0))


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    """Version directories of both steps, copied."""
    found = []
    for step in ("fraud_features", "fraud_decision"):
        found.append(tmp_path / step / "1")
        shutil.copytree(REPOSITORY / step / "1", found[-1])
    return found[0], found[1]


@pytest.fixture
def open_pipeline(
    store_url: str, directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Open pipelines over one empty Redis, which is store and journal."""
    opened: list[Pipeline] = []

    def open_(**options: object) -> Pipeline:
        url = str(options.pop("journal_url", store_url))
        use(monkeypatch, store_url=store_url, journal_url=url)
        opened.append(Pipeline(*directories, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def wait_for(client: redis.Redis, *names: str) -> None:
    """Wait until decisions are stored: the journal's thread does it."""
    until_s = time.monotonic() + PATIENCE_S
    keys = [stored_decision_key("fraud", name.encode()) for name in names]
    while client.exists(*keys) < len(keys):
        assert time.monotonic() < until_s, "a decision was not stored"
        time.sleep(0.002)


def test_same_id_twice_is_the_same_answer_to_the_bit(
    open_pipeline: Open, redis_client: redis.Redis
) -> None:
    """Although its windows have moved on, and the first answer said cold start."""
    pipeline = open_pipeline()
    (first,) = pipeline.answer(AGAIN)
    wait_for(redis_client, "t1", "t2")
    for number in range(3):  # events before it, in time: its own windows change
        row = bought(f"o{number}", at_us=NOW_US - 5 + number, amount=500.0)
        pipeline.answer(request(row))
    assert pipeline.answer(AGAIN) == [first]
    assert pipeline.answer(AGAIN, request(bought("t1")))[1] == first[:1]


def test_it_holds_under_another_policy_and_release(
    open_pipeline: Open, redis_client: redis.Redis, directories: tuple[Path, Path]
) -> None:
    """The stored decision, score, codes, bits and release; new ids are decided."""
    (first,) = open_pipeline().answer(AGAIN)
    wait_for(redis_client, "t1", "t2")
    policy = directories[1] / "policy.yaml"
    text = policy.read_text().replace("{ge: 1000}", "{ge: 1}")
    policy.write_text(text)
    later = open_pipeline(release="fraud-2")
    new = request(bought("t9", customer="n", terminal="n"))
    again, ((decision, _, codes, _, _, release),) = later.answer(AGAIN, new)
    assert again == first
    assert {row[5] for row in again} == {b"fraud-1"}
    assert decision != b"approve"
    assert b"LARGE_AMOUNT" in codes
    assert release == b"fraud-2"


@pytest.mark.parametrize(
    "changes",
    [
        {"amount": 12.51},
        {"customer": "x"},
        {"terminal": "x"},
        {"at_us": NOW_US + 1},
    ],
    ids=lambda one: next(iter(one)),
)
def test_other_content_is_a_conflict(
    open_pipeline: Open, redis_client: redis.Redis, changes: dict[str, object]
) -> None:
    """That row's error, whose neighbour is answered; alone it fails the request."""
    pipeline = open_pipeline()
    pipeline.answer(request(bought("t1")))
    wait_for(redis_client, "t1")
    other = bought("t1", **changes)
    (mixed,) = pipeline.answer(request(other, bought("t2")))
    decision, _, codes, bits, error, _ = mixed[0]
    assert (decision, codes, bits) == (b"", b"", 0)
    assert error.decode() == WORDS % "t1"
    assert mixed[1][4] == b""
    assert pipeline.answer(request(other)) == [f"row 0: {WORDS % 't1'}"]
    dry = request(other, bought("t3"), dry_run=True)
    assert pipeline.answer(dry)[0][0][4].decode() == WORDS % "t1"


def test_twins_of_one_batch_agree_or_conflict(open_pipeline: Open) -> None:
    """The same twice is one answer twice; other content loses to the row before it."""
    pipeline = open_pipeline(journal_url="")
    one, other = request(bought("t1")), request(bought("t1", amount=99.0))
    first, refused, again = pipeline.answer(one, other, one)
    assert first == again
    assert refused == f"row 0: {WORDS % 't1'}"


def test_concurrent_twins_are_answered_alike(
    open_pipeline: Open, redis_client: redis.Redis
) -> None:
    """Neither finds a decision of the other, and the first one is stored."""
    one, other = open_pipeline(), open_pipeline(release="fraud-2")
    context = one.contexts(AGAIN)
    assert not context["earlier_length"].any()
    (mine,) = one.answer(AGAIN)
    wait_for(redis_client, "t1", "t2")
    kept = redis_client.mget(
        *(stored_decision_key("fraud", name) for name in (b"t1", b"t2"))
    )
    assert other.answer(AGAIN) == [mine]
    after = redis_client.mget(
        *(stored_decision_key("fraud", name) for name in (b"t1", b"t2"))
    )
    assert after == kept


def test_a_dry_run_reads_decisions_and_keeps_none(
    open_pipeline: Open, redis_client: redis.Redis
) -> None:
    """It answers as if; the real run is the first to be stored."""
    pipeline = open_pipeline(parameters={"dry_share_ms": "0"})
    dry = request(bought("t1"), dry_run=True)
    (first,) = pipeline.answer(dry)
    pipeline.answer(request(bought("t2")))
    wait_for(redis_client, "t2")
    assert redis_client.keys("*:decided:*") == [b"tollgate:fraud:decided:t2"]
    value = pack_stored_decision(
        int(pipeline.contexts(dry)["fingerprint"][0]),
        decision=2,
        score=0.125,
        degraded=256,
        release=b"fraud-0",
        codes=b"A|B",
    )
    redis_client.set(stored_decision_key("fraud", b"t1"), value)
    ((answer,),) = pipeline.answer(dry)
    bits = 0x3E000000  # 0.125
    assert answer == (b"decline", bits, b"A|B", 256, b"", b"fraud-0")
    assert answer != first[0]


def test_a_writer_of_the_store_can_forge_a_stored_decision(
    open_pipeline: Open, redis_client: redis.Redis
) -> None:
    """
    The limit of trust in the store: a stored decision has a checksum and no signature.

    It stands for its own content alone: for another amount it is a conflict.
    """
    pipeline = open_pipeline(journal_url="")
    forged = pack_stored_decision(
        int(pipeline.contexts(request(bought("t1")))["fingerprint"][0]),
        **{"decision": 0, "score": 0.0, "degraded": 0},
        **{"release": b"forged", "codes": b""},
    )
    redis_client.set(stored_decision_key("fraud", b"t1"), forged)
    ((row,),) = pipeline.answer(request(bought("t1")))
    assert (row[0], row[-1]) == (b"approve", b"forged")
    mixed = request(bought("t1", amount=999.0), bought("t9"))
    ((other, _),) = pipeline.answer(mixed)
    assert other[4].decode() == WORDS % "t1"


def test_a_damaged_record_is_none(
    open_pipeline: Open, redis_client: redis.Redis
) -> None:
    """It is never decoded: the row is decided again, and says that it was not read."""
    pipeline = open_pipeline(journal_url="")
    (fresh,) = pipeline.answer(request(bought("t1")))
    good = pack_stored_decision(
        int(pipeline.contexts(request(bought("t1")))["fingerprint"][0]),
        **{"decision": 2, "score": 0.5, "degraded": 0},
        **{"release": b"r", "codes": b""},
    )
    for wrong in (good[:-1], good[:9] + b"\xff" + good[10:], b"\x09" + good[1:], b"x"):
        redis_client.set(stored_decision_key("fraud", b"t1"), wrong)
        ((row,),) = pipeline.answer(request(bought("t1")))
        assert row[:3] == fresh[0][:3]
        assert row[3] == fresh[0][3] | Degraded.LOOKUPS_UNREAD
        assert row[4:] == (b"", b"fraud-1")
    assert pipeline.features._chain.counts.earlier == {"corrupt": 4}


def test_alone_or_in_a_batch_it_is_the_same(
    open_pipeline: Open, redis_client: redis.Redis
) -> None:
    """Earlier decisions, conflicts and new rows, in any company."""
    pipeline = open_pipeline(parameters={"dry_share_ms": "0"})
    pipeline.answer(request(bought("t1")), request(bought("t2")))
    wait_for(redis_client, "t1", "t2")
    rows = [bought("t1"), bought("t2", amount=1.0), bought("t3"), bought("")]
    alone = [pipeline.answer(request(row, dry_run=True))[0] for row in rows]
    together = pipeline.answer(*(request(row, dry_run=True) for row in rows))
    assert together == alone
    (mixed,) = pipeline.answer(request(*rows[:3], dry_run=True))
    assert mixed[0] == alone[0][0]
    assert f"row 0: {mixed[1][4].decode()}" == alone[1]


def test_without_a_store_rows_are_decided_and_say_so(
    open_pipeline: Open, monkeypatch: pytest.MonkeyPatch, directories: tuple[Path, Path]
) -> None:
    """No conflict can be seen then; the bit reports it."""
    use(monkeypatch, store_url="", journal_url="")
    pipeline = Pipeline(*directories)
    for amount in (12.5, 13.5):
        ((row,),) = pipeline.answer(request(bought("t1", amount=amount)))
        assert row[0] != b""
        assert row[3] & Degraded.LOOKUPS_UNREAD
    pipeline.close()


def test_lists_reach_the_context_by_the_policys_names(
    open_pipeline: Open, redis_client: redis.Redis, directories: tuple[Path, Path]
) -> None:
    """Policy, release and feature step agree on keys and bits; a rule decides by it."""
    policy = directories[1] / "policy.yaml"
    text = policy.read_text()
    assert text.count("lists:\n") == 1  # of the committed policy: stolen_cards
    text = text.replace(
        "lists:\n", "lists:\n  - {name: bad, of: terminal_id, meaning: deny}\n"
    ).replace(
        "rules:\n",
        "rules:\n  - {name: bad_terminal, owner: risk, when: {bad: true}, "
        "at_least: review, code: BAD}\n",
    )
    policy.write_text(text.replace("reasons:\n", "reasons:\n  BAD: Is bad.\n"))
    redis_client.sadd("tollgate:fraud:list:bad", "m", "v")
    redis_client.sadd("tollgate:fraud:list:stolen_cards", "v", "n")
    pipeline = open_pipeline()
    rows = request(
        bought("t1"),
        bought("t2", customer="v", terminal="n"),
        bought("t3", customer="x", terminal="n"),
    )
    assert pipeline.contexts(rows)["list_hits"].tolist() == [1, 2, 0]
    (answers,) = pipeline.answer(rows)
    codes = [row[2].split(b"|") for row in answers]
    assert [b"BAD" in one for one in codes] == [True, False, False]
    assert [b"CARD_REPORTED_STOLEN" in one for one in codes] == [False, True, False]
    assert answers[1][0] == b"decline"
