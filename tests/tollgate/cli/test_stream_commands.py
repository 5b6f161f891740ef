"""`stream` as a person types it: whose watermarks it keeps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.lookups import FEEDS, LABELS, feed_key

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the repository."""
    copy = tmp_path / "model_repository"
    shutil.copytree(CHECKOUT / "model_repository", copy)
    return copy


def stream(
    store_url: str, repository: Path, *words: str, absent: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `tollgate stream` until its feed is idle; one package may be absent."""
    code = "from tollgate.cli import main; main()"
    if absent:
        code = f"import sys; sys.modules[{absent!r}] = None; {code}"
    command = [sys.executable, "-c", code, "stream"]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TOLLGATE_")
    }
    return subprocess.run(
        [*command, "--until-idle", "--repository", str(repository), *words],
        cwd=CHECKOUT,
        env=environment
        | {"TOLLGATE_STORE_URL": store_url, "COLUMNS": "200"}
        | variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def stored_feeds(client: redis.Redis) -> set[str]:
    """Name the feeds that have a watermark."""
    return {name for name in FEEDS if client.exists(feed_key("fraud", name))}


def test_a_stream_keeps_the_watermarks_that_the_call_does_not(
    store_url: str, redis_client: redis.Redis, repository: Path
) -> None:
    """Labels where scoring alone updates, both where the step's parameter says so."""
    done = stream(store_url, repository)
    assert done.returncode == 0, done.stderr
    assert stored_feeds(redis_client) == {LABELS}
    config = repository / "fraud_features" / "config.pbtxt"
    config.write_text(
        config.read_text()
        + 'parameters { key: "updates" value { string_value: "both" } }\n'
    )
    assert stream(store_url, repository).returncode == 0
    assert stored_feeds(redis_client) == set(FEEDS)


def test_feeds_are_chosen_by_name(
    store_url: str, redis_client: redis.Redis, repository: Path
) -> None:
    """None at all, too; and a name that is none is one line and status 2."""
    assert stream(store_url, repository, "--feeds", "").returncode == 0
    assert stored_feeds(redis_client) == set()
    wrong = stream(store_url, repository, "--feeds", "labels,prices")
    assert wrong.returncode == 2
    assert "'prices' is none of purchases, labels" in wrong.stdout + wrong.stderr


def test_the_feed_may_be_elsewhere(
    store_url: str, repository: Path, tmp_path: Path
) -> None:
    """By a variable, since an address holds a password and others read a command."""
    with EmbeddedRedis(tmp_path / "feed") as server:
        with redis.Redis.from_url(server.url) as elsewhere:
            elsewhere.xadd("tollgate.fraud.events:0", {"event": "no event"})
        done = stream(store_url, repository, TOLLGATE_FEED_URL=server.url)
    assert done.returncode == 0, done.stderr
    assert "dead letters 1" in done.stdout


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ("confluent_kafka", ("--kafka", "127.0.0.1:1")),
        ("paho", ("--feed-url", "mqtt://127.0.0.1:1")),
    ],
)
def test_a_missing_package_is_one_line_with_its_extra(
    absent: str, words: tuple[str, ...]
) -> None:
    """Kafka and MQTT are of the extra `stream`, which a server does without."""
    repository = CHECKOUT / "model_repository"
    done = stream("redis://127.0.0.1:1", repository, *words, absent=absent)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"tollgate: {absent} is not installed; ")
    assert "pip install -e '.[stream]'" in done.stderr
