"""`tollgate policy` and `tollgate lists` as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import redis
from typer.testing import CliRunner

from tollgate.cli.app import app

CHECKOUT = Path(__file__).resolve().parents[3]
POLICY = CHECKOUT / "model_repository" / "fraud_decision" / "1" / "policy.yaml"
REPOSITORY = ["--repository", str(CHECKOUT / "model_repository")]


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The policy of the product with one threshold moved."""
    path = tmp_path / "new.yaml"
    text = POLICY.read_text()
    assert "  decline: 0.80" in text
    path.write_text(text.replace("  decline: 0.80", "  decline: 0.70"))
    return path


def run(*arguments: object) -> tuple[int, str]:
    """Run a command; exit status and output."""
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    text = done.output if done.exception is None else f"{done.output}{done.exception}"
    return done.exit_code, text


def spec(path: Path) -> list[str]:
    """Name the product's features.yaml."""
    return ["--spec", str(path)]


def test_check_says_what_a_policy_holds(spec_path: Path, tmp_path: Path) -> None:
    """Or which line cannot be meant."""
    status, text = run("policy", "check", POLICY, *spec(spec_path))
    assert (status, text) == (
        0,
        f"{POLICY}: sound: 2 labels, 2 segments, 1 lists, 6 rules\n",
    )
    broken = tmp_path / "broken.yaml"
    broken.write_text(POLICY.read_text().replace("amount: {lt: 10}", "amount: {lt: 0}"))
    number = broken.read_text().splitlines().index("    when: {amount: {lt: 0}}") + 1
    status, text = run("policy", "check", broken, *spec(spec_path))
    assert status != 0
    assert f"line {number}: rules.never_decline_small.when.amount: can never" in text


def test_check_knows_the_inputs_of_ids(spec_path: Path, tmp_path: Path) -> None:
    """A list of an input that is not there is refused, as the release would."""
    broken = tmp_path / "broken.yaml"
    broken.write_text(POLICY.read_text().replace("of: customer_id", "of: card_id"))
    status, text = run("policy", "check", broken, *spec(spec_path))
    assert status != 0
    assert "'card_id' is none of transaction_id, customer_id, terminal_id" in text


def test_diff_is_one_line_a_change(changed: Path) -> None:
    """Exit status 1 with a difference, 0 without."""
    assert run("policy", "diff", POLICY, POLICY) == (0, "the same policy\n")
    status, text = run("policy", "diff", POLICY, changed)
    assert status == 1
    assert text.startswith("thresholds.decline: changed: 0.8 → 0.7: stricter\n")
    status, text = run("policy", "diff", POLICY, changed, "--json")
    assert status == 1
    (one,) = json.loads(text.partition("]")[0] + "]")
    assert one["where"] == "thresholds.decline"


def test_simulate_counts_what_would_have_been(
    changed: Path, spec_path: Path, tmp_path: Path
) -> None:
    """One of three purchases is declined now; table, picture and JSON say so."""
    rows = tmp_path / "rows.parquet"
    risk = {"terminal_risk_1d": [0.0] * 3, "terminal_risk_7d": [0.0] * 3}
    pl.DataFrame(
        {"score": [0.1, 0.75, 0.9], "amount": [10.0, 20.0, 30.0], **risk}
    ).write_parquet(rows)
    words = ["policy", "simulate", changed, "--on", rows, *spec(spec_path)]
    assert "--against: name the policy to compare with" in run(*words)[1]
    picture = tmp_path / "picture.png"
    status, text = run(*words, "--against", POLICY, "--picture", picture)
    assert status == 0, text
    assert "1 of 3 rows decided otherwise; approve +0 (+0.00), review -1" in text
    assert "decline +1 (+20.00)" in " ".join(text.split())
    assert picture.read_bytes().startswith(b"\x89PNG")
    status, text = run(*words, "--against", POLICY, "--json")
    assert json.loads(text)["matrix"] == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    named = changed.read_text().replace("owner: fraud-op", 'owner: "[a] of [/eu]" # ')
    changed.write_text(named)
    status, text = run(*words, "--against", POLICY)
    assert (status, text.count("[a] of [/eu]")) == (0, named.count("[a] of [/eu]"))


def test_lists_are_filled_shown_and_replaced(
    store_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """Add, look up, load, replace, remove: each says what it did."""
    to = [*REPOSITORY, "--store-url", store_url]
    name = "stolen_cards"
    assert run("lists", "add", name, "c1", "c2", *to) == (
        0,
        "stolen_cards: 2 added, 0 were in it; 2 now\n",
    )
    key = b"tollgate:fraud:list:stolen_cards"
    assert redis_client.smembers(key) == {b"c1", b"c2"}
    status, text = run("lists", "show", name, "c1", "c3", *to)
    assert status == 1
    assert text.startswith("c1: in stolen_cards\nc3: not in stolen_cards\n")
    file = tmp_path / "ids.txt"
    file.write_text("c3\n\n c2 \n")
    done = run("lists", "load", name, file, "--replace", *to)
    assert done == (0, "stolen_cards: 1 added, 1 removed; 2 now\n")
    assert redis_client.smembers(key) == {b"c2", b"c3"}
    status, text = run("lists", "show", name, *to)
    assert (status, sorted(text.split())) == (0, ["c2", "c3"])
    done = run("lists", "remove", name, "c2", "c9", *to)
    assert done == (0, "stolen_cards: 1 removed, 1 were not; 1 now\n")


def test_a_list_that_no_policy_asks_for_is_refused(
    store_url: str, redis_client: redis.Redis
) -> None:
    """A slip of the pen fills no set; one that comes early is said to."""
    to = [*REPOSITORY, "--store-url", store_url]
    status, text = run("lists", "add", "stolen_card", "c1", *to)
    assert status != 0
    assert "'stolen_card' is no list of the served policy: it has stolen_cards" in text
    assert redis_client.dbsize() == 0
    status, _ = run("lists", "add", "stolen_card", "c1", "--early", *to)
    assert status == 0
