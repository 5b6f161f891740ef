"""Request items for users; every call returns a list."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

import grpc

from tollgate_client.addresses import opener
from tollgate_client.async_client import COALESCING, AsyncClient, Coalescing
from tollgate_client.attempts import ClientState
from tollgate_client.blocking_client import BlockingClient
from tollgate_client.contract import SHOP_FIELDS, SHOP_INPUTS
from tollgate_client.errors import ClientError, InvalidRequest
from tollgate_client.options import Options
from tollgate_client.recommendations import (
    FallbackItems,
    RankingRow,
    RecommendationOutcome,
    RecommendationRequest,
    Recommendations,
    encode_ranking_row,
    own_list,
    recommendations_of,
)
from tollgate_client.wire import Request, ranked_rows_of, request_of

RECOMMENDER_OPTIONS = Options(
    product="shop", inputs=SHOP_INPUTS, fields=SHOP_FIELDS, deadline_s=0.1
)
_NOTHING: Mapping[str, object] = MappingProxyType({})

_Given = tuple[RecommendationRequest, int]  # with the number of items


class RankingState(ClientState[_Given, RankingRow, Recommendations]):
    """
    Hold the client's own lists; threads may share it.

    Args:
        addresses, connect, options, clock: See `ClientState`.
        fallback: Lists for when no server answers.

    Raises:
        InputError: The arguments do not fit together.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        connect: Callable[[str], tuple[Any, Any]],
        *,
        fallback: FallbackItems,
        options: Options,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(addresses, connect, options=options, clock=clock, verb="rank")
        self.fallback = fallback

    def encode(self, given: _Given) -> RankingRow:
        """Check a request for items and encode it; see `encode_ranking_row`."""
        request, count = given
        row = encode_ranking_row(
            request,
            count=count,
            inputs=self.options.inputs,
            fields=self.options.fields,
        )
        own = len(self.fallback.of(row.fallback))
        if count > own:
            problem = f"the client's own list has only {own} items"
            raise InvalidRequest(f"count: {count}: {problem}")
        return row

    def request(self, rows: Sequence[RankingRow], *, dry_run: bool) -> Request:
        """Encode rows with one number of items as one request."""
        return request_of(
            rows,
            product=self.options.product,
            kinds=self.kinds,
            dry_run=dry_run,
            count=rows[0].count,
        )

    def request_key(self, row: RankingRow) -> Hashable:
        """Return the number of items, which a request has once."""
        return row.count

    def answers(
        self, response: bytes, rows: Sequence[RankingRow]
    ) -> list[Recommendations | ClientError]:
        """Decode a response; see `recommendations_of`."""
        return recommendations_of(ranked_rows_of(response), rows, self.fallback)

    def without_server(
        self, row: RankingRow, *, why: str, dry_run: bool
    ) -> Recommendations:
        """Answer a row with items of the client's own list."""
        return own_list(row, self.fallback, why=why)

    def finish(self, answer: Recommendations, *, latency_s: float) -> Recommendations:
        """Count a list and its items, and copy it with its latency."""
        self.counters.add("lists", answer.source_of_list)
        for source in set(answer.sources):
            self.counters.add("items", source, count=answer.sources.count(source))
        return replace(answer, latency_s=latency_s)

    def describe(
        self, given: _Given, outcome: RecommendationOutcome
    ) -> dict[str, str | int]:
        """Describe a list for a span: no user and no item."""
        found: dict[str, str | int] = {"tollgate.request_id": str(given[0].request_id)}
        if isinstance(outcome, InvalidRequest):
            return found | {"tollgate.refused": True}
        return found | {
            "tollgate.source": outcome.source_of_list,
            "tollgate.items": len(outcome),
            "tollgate.degraded": outcome.degraded,
            "tollgate.release": outcome.release,
        }


class Recommender(BlockingClient[_Given, RankingRow, Recommendations]):
    """
    Request items for users of one product; threads may share the client.

        best_sellers = FallbackItems(("i-7", "i-3", "i-12", …))
        with Recommender(["shop-0:8001"], fallback=best_sellers) as client:
            answer = client.recommend("r-1", "carol", count=10)

    A server failure never raises an error: `recommend` returns within its deadline,
    with items of the client's own list if need be. An invalid request always raises
    one. A process that forks creates its client after the fork.

    Args:
        addresses: host:port of each server, called in turn; or one name that resolves
            to many servers.
        fallback: Lists for when no server answers; assign `fallback` to refresh them.
        options: Product, deadline, retries and connection.

    Raises:
        InputError: Addresses or options do not fit together.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        fallback: FallbackItems,
        options: Options = RECOMMENDER_OPTIONS,
    ) -> None:
        self._state = RankingState(
            addresses,
            opener(options, grpc),
            fallback=fallback,
            options=options,
            clock=time.monotonic,
        )
        super().__init__(self._state)

    @property
    def fallback(self) -> FallbackItems:
        """The client's own lists, for when no server answers."""
        return self._state.fallback

    @fallback.setter
    def fallback(self, fallback: FallbackItems) -> None:
        self._state.fallback = fallback

    def recommend(
        self,
        request_id: str,
        user_id: str,
        *,
        count: int = 10,
        slot: str | None = None,
        device: str | None = None,
        exclude: Sequence[str] = (),
        event_time: int | datetime | None = None,
        fields: Mapping[str, object] = _NOTHING,
        fallback: str | None = None,
        dry_run: bool = False,
        deadline_s: float | None = None,
        traceparent: str = "",
    ) -> Recommendations:
        """
        Return items for one user.

        Args:
            request_id, user_id, slot, device, exclude, fields, fallback: See
                `RecommendationRequest`.
            count: Number of items, 1 to 50.
            event_time: Time of the request: µs since 1970, or a datetime with a time
                zone; None for now.
            dry_run: Rank without writing anything.
            deadline_s: Seconds left for the answer; the client's own if None.
            traceparent: W3C trace context to pass on.

        Raises:
            InvalidRequest: The request is invalid, or asks for more items than the
                client's own list has.
        """
        request = RecommendationRequest(
            request_id,
            user_id,
            _now_us() if event_time is None else event_time,
            slot,
            device,
            exclude,
            fields,
            fallback,
        )
        (outcome,) = self.recommend_rows(
            [request],
            count=count,
            dry_run=dry_run,
            deadline_s=deadline_s,
            traceparent=traceparent,
        )
        if isinstance(outcome, InvalidRequest):
            raise outcome
        return outcome

    def recommend_rows(
        self,
        requests: Sequence[RecommendationRequest],
        *,
        count: int = 10,
        dry_run: bool = False,
        deadline_s: float | None = None,
        traceparent: str = "",
    ) -> list[RecommendationOutcome]:
        """
        Return items for 1 to 32 users, with one request to a server.

        Returns:
            A list of items for each request, in the order given; an InvalidRequest in
            the position of an invalid one.

        Raises:
            InvalidRequest: There are no requests, or more than 32.
        """
        return self._answer_rows(
            [(one, count) for one in requests],
            dry_run=dry_run,
            deadline_s=deadline_s,
            traceparent=traceparent,
        )


class AsyncRecommender(AsyncClient[_Given, RankingRow, Recommendations]):
    """
    Offer `Recommender` for asyncio; create and use it inside one event loop.

    Concurrent calls of `recommend` with the same count share requests.

    Args:
        addresses, fallback, options: See `Recommender`.
        coalescing: Rules by which calls share requests; None sends each call alone.

    Raises:
        InputError: Addresses or options do not fit together.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        fallback: FallbackItems,
        options: Options = RECOMMENDER_OPTIONS,
        coalescing: Coalescing | None = COALESCING,
    ) -> None:
        self._state = RankingState(
            addresses,
            opener(options, grpc.aio),
            fallback=fallback,
            options=options,
            clock=asyncio.get_running_loop().time,
        )
        super().__init__(self._state, coalescing)

    @property
    def fallback(self) -> FallbackItems:
        """The client's own lists, for when no server answers."""
        return self._state.fallback

    @fallback.setter
    def fallback(self, fallback: FallbackItems) -> None:
        self._state.fallback = fallback

    async def recommend(
        self,
        request_id: str,
        user_id: str,
        *,
        count: int = 10,
        slot: str | None = None,
        device: str | None = None,
        exclude: Sequence[str] = (),
        event_time: int | datetime | None = None,
        fields: Mapping[str, object] = _NOTHING,
        fallback: str | None = None,
        dry_run: bool = False,
        deadline_s: float | None = None,
        traceparent: str = "",
    ) -> Recommendations:
        """Return items for one user; see `Recommender.recommend`."""
        request = RecommendationRequest(
            request_id,
            user_id,
            _now_us() if event_time is None else event_time,
            slot,
            device,
            exclude,
            fields,
            fallback,
        )
        return await self._answer_one(
            (request, count),
            dry_run=dry_run,
            deadline_s=deadline_s,
            traceparent=traceparent,
        )

    async def recommend_each(
        self,
        requests: Sequence[RecommendationRequest],
        *,
        count: int = 10,
        dry_run: bool = False,
        deadline_s: float | None = None,
        traceparent: str = "",
    ) -> list[RecommendationOutcome]:
        """
        Return items for any number of users, each as a call of `recommend` would.

        They share requests with each other and with concurrent calls. An invalid
        request is returned as its error, in its place.
        """
        return await self._answer_each(
            [(one, count) for one in requests],
            dry_run=dry_run,
            deadline_s=deadline_s,
            traceparent=traceparent,
        )

    async def recommend_rows(
        self,
        requests: Sequence[RecommendationRequest],
        *,
        count: int = 10,
        dry_run: bool = False,
        deadline_s: float | None = None,
        traceparent: str = "",
    ) -> list[RecommendationOutcome]:
        """Return items for 1 to 32 users; see `Recommender.recommend_rows`."""
        return await self._answer_rows(
            [(one, count) for one in requests],
            dry_run=dry_run,
            deadline_s=deadline_s,
            traceparent=traceparent,
        )


def _now_us() -> int:
    return time.time_ns() // 1000
