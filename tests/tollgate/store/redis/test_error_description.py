"""Errors of Redis as they may be logged."""

from __future__ import annotations

import pytest
import redis

from tollgate.errors import StoreError
from tollgate.store.redis.redis_store import RedisStore, describe_error

MARKER = "customer-4711"


def test_a_pipelines_error_does_not_name_its_command(redis_client: redis.Redis) -> None:
    """redis-py puts the command and its arguments in front of what Redis said."""
    redis_client.set("feed", "no stream")
    pipe = redis_client.pipeline(transaction=False)
    pipe.xadd("feed", {"event": MARKER})
    with pytest.raises(redis.ResponseError) as caught:
        pipe.execute()
    assert MARKER in str(caught.value)
    assert describe_error(caught.value).startswith("WRONGTYPE Operation against a key")


def test_an_unknown_command_does_not_name_its_arguments(
    redis_client: redis.Redis,
) -> None:
    """A Redis whose commands were renamed repeats what it was asked with."""
    with pytest.raises(redis.ResponseError) as caught:
        redis_client.execute_command("NOSUCH", MARKER, "two\r\nlines")
    assert MARKER in str(caught.value)
    text = describe_error(caught.value)
    assert text.startswith("unknown command")
    assert "NOSUCH" in text
    assert MARKER not in text


def test_other_words_stay_on_one_line() -> None:
    """What a reply that is none held is left out; the rest is as it was."""
    assert describe_error(OSError("no\nroute")) == "no route"
    assert describe_error(redis.InvalidResponse(f"Protocol Error: b'{MARKER}'")) == (
        "Protocol Error"
    )


def test_the_stores_own_errors_are_made_of_them(redis_client: redis.Redis) -> None:
    """A value of another kind is described by kind, without its key."""
    url = redis_client.connection_pool.connection_kwargs["path"]
    store = RedisStore(f"unix://{url}", deadline_s=5.0)
    _, (reply,) = store.flush([], extra_commands=[(b"NOSUCH", MARKER.encode())])
    assert MARKER in str(reply)
    assert MARKER not in describe_error(reply)
    store.close()
    gone = RedisStore("unix:///nowhere.sock", deadline_s=5.0)
    with pytest.raises(StoreError, match="No such file"):
        gone.flush([], extra_commands=[(b"PING",)])
