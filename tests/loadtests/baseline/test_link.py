"""Tests of asking Redis without waiting."""

from __future__ import annotations

import asyncio

import pytest
import redis
from redis.exceptions import RedisError, ResponseError

from loadtests.baseline.lean.link import Link


def test_everyone_gets_his_own_replies(store_url: str) -> None:
    """However many ask at once, and again over the same connections."""

    async def ask() -> None:
        link = Link(store_url)
        for _ in range(2):
            asked = [
                link.ask([(b"ECHO", b"%d" % one), (b"PING",)]) for one in range(30)
            ]
            replies = await asyncio.gather(*asked)
            assert replies == [[b"%d" % one, b"PONG"] for one in range(30)]
        await link.close()

    asyncio.run(ask())


def test_a_refused_command_leaves_no_reply_behind(store_url: str) -> None:
    """The next one reads its own."""

    async def ask() -> None:
        link = Link(store_url)
        with pytest.raises(ResponseError):
            await link.ask([(b"NONSENSE",), (b"ECHO", b"old")])
        assert await link.ask([(b"ECHO", b"new")]) == [b"new"]
        await link.close()

    asyncio.run(ask())


def test_a_store_that_is_late_is_an_error_and_is_asked_again(
    store_url: str, redis_client: redis.Redis
) -> None:
    """An answer that comes after the deadline is nobody's."""

    async def ask() -> None:
        link = Link(store_url, timeout_s=1.0)
        await link.ask([(b"PING",)])
        redis_client.execute_command("CLIENT", "PAUSE", "3000")
        with pytest.raises(RedisError):
            await link.ask([(b"ECHO", b"late")])
        redis_client.ping()  # returns when the pause is over
        assert await link.ask([(b"ECHO", b"now")]) == [b"now"]
        await link.close()

    asyncio.run(ask())
