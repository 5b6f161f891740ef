"""Hold each product with its client, and follow its active release."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any

import grpc
import msgspec

from tollgate.door.products import DoorProduct
from tollgate.door.refusal import Refusal
from tollgate.schema import (
    EVENT_TIME,
    EXCLUDE,
    LIST_SIZE,
    MAX_EXCLUDED,
    MAX_LIST_SIZE,
    REQUEST_ID,
)
from tollgate.suggestions import suggest
from tollgate_client import (
    AsyncDecisionClient,
    AsyncRecommender,
    Coalescing,
    Fallback,
    InputError,
    InvalidRequest,
    Options,
    Outcome,
    RecommendationOutcome,
    RecommendationRequest,
    Tls,
)
from tollgate_client.options import bearer, check_secrecy
from tollgate_client.telemetry import Counters

log = logging.getLogger(__name__)

# Requests of one row each cost a server several times as much as full ones. A row that
# finds no request in flight never waits, and others no longer than for its return.
COALESCING = Coalescing(wait_s=0.003)
# Part of a caller's time, up to some milliseconds, for reading its request and writing
# its answer, together with those of others: for 64 callers at once, whose server had
# stalled, both took 3 to 5 ms.
_WAY_BACK_PART, _MOST_WAY_BACK_S = 1 / 6, 0.008
_MODEL_READY = "/inference.GRPCInferenceService/ModelReady"
_READY_TIMEOUT_S = 1.0


class Upstream(msgspec.Struct, frozen=True):
    """
    The servers that decide, and how to reach them.

    Attributes:
        addresses: host:port of each, or one name behind which gRPC finds several.
        deadline_s: Deadline of a request that names none.
        tls: TLS settings; None for plain text.
        token: API key of the door at a gateway; None for none.
        fallbacks: Rule by product, for when no server answers.
    """

    addresses: Sequence[str]
    deadline_s: float
    tls: Tls | None = None
    token: str | None = None
    fallbacks: Mapping[str, Fallback] = {}

    def check(self) -> None:
        """
        Check the addresses as a client will, before a process is started for it.

        Raises:
            InputError: One is empty, stands twice, or would get the key in plain text.
        """
        for address in self.addresses:
            if not address or list(self.addresses).count(address) > 1:
                problem = f"{address!r} is empty or stands twice"
                raise InputError("addresses", problem)
            check_secrecy(address, tls=self.tls, token=self.token)


class Decider:
    """
    A product and the client that has its rows decided, or items ranked for them.

    Args:
        product: The product as its release describes it.
    """

    client: AsyncDecisionClient | AsyncRecommender

    def __init__(self, product: DoorProduct, upstream: Upstream) -> None:
        self.product = product
        self._upstream = upstream
        options = Options(
            product=product.name,
            inputs=product.inputs,
            fields=product.fields,
            deadline_s=upstream.deadline_s,
            tls=upstream.tls,
            token=upstream.token,
        )
        if product.ranking is not None:
            self.client = AsyncRecommender(
                upstream.addresses,
                fallback=product.ranking.own_lists,
                options=options,
                coalescing=COALESCING,
            )
        else:
            self.client = AsyncDecisionClient(
                upstream.addresses,
                fallback=fallback_of(product, upstream),
                options=options,
                coalescing=COALESCING,
            )

    def follow(self, product: DoorProduct) -> Decider:
        """Return the decider for a newer release: this one where its inputs fit."""
        was = self.product
        if (was.inputs, was.fields, was.outcomes, was.ranking is None) != (
            product.inputs,
            product.fields,
            product.outcomes,
            product.ranking is None,
        ):
            return Decider(product, self._upstream)
        self.product = product
        if isinstance(self.client, AsyncRecommender) and product.ranking is not None:
            self.client.fallback = product.ranking.own_lists
        return self

    async def decide_each(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        dry_run: bool,
        arrived_s: float,
        deadline_s: float | None,
        traceparent: str,
    ) -> list[Outcome] | list[RecommendationOutcome]:
        """
        Decide rows, or rank items for them, early enough for their caller.

        Args:
            arrived_s: Time of the loop at which the rows arrived.
            deadline_s: Time that the caller waits from then on; None for the default.
        """
        given_s = self._upstream.deadline_s if deadline_s is None else deadline_s
        used_s = asyncio.get_running_loop().time() - arrived_s
        way_back_s = min(given_s * _WAY_BACK_PART, _MOST_WAY_BACK_S)
        left_s = given_s - used_s - way_back_s
        if isinstance(self.client, AsyncDecisionClient):
            return await self.client.decide_each(
                rows, dry_run=dry_run, deadline_s=left_s, traceparent=traceparent
            )
        return await self._recommend_each(
            self.client,
            rows,
            dry_run=dry_run,
            deadline_s=left_s,
            traceparent=traceparent,
        )

    async def _recommend_each(
        self,
        client: AsyncRecommender,
        rows: Sequence[Mapping[str, Any]],
        *,
        dry_run: bool,
        deadline_s: float,
        traceparent: str,
    ) -> list[RecommendationOutcome]:
        """Rank items; rows with one number of items share requests."""
        found: dict[int, RecommendationOutcome] = {}
        by_count: dict[int, dict[int, RecommendationRequest]] = {}
        for place, row in enumerate(rows):
            try:
                count, request = list_request(row, self.product)
            except InvalidRequest as error:
                found[place] = error
            else:
                by_count.setdefault(count, {})[place] = request
        parts = await asyncio.gather(
            *(
                client.recommend_each(
                    [*own.values()],
                    count=count,
                    dry_run=dry_run,
                    deadline_s=deadline_s,
                    traceparent=traceparent,
                )
                for count, own in by_count.items()
            )
        )
        for own, outcomes in zip(by_count.values(), parts, strict=True):
            found |= zip(own, outcomes, strict=True)
        return [found[place] for place in range(len(rows))]

    async def server_ready(self) -> bool:
        """Return whether a server says that it serves the product."""
        proof = bearer(self._upstream.token)  # the gateway's health needs it, too
        name = self.product.name.encode()
        request = bytes((0x0A, len(name))) + name  # ModelReadyRequest.name
        for address in self.client.addresses:
            call = address.channel.unary_unary(_MODEL_READY)
            try:
                if await call(request, timeout=_READY_TIMEOUT_S, metadata=proof):
                    return True  # ModelReadyResponse.ready; false is not encoded
            except grpc.RpcError:
                continue
        return False


def list_request(
    row: Mapping[str, Any], product: DoorProduct
) -> tuple[int, RecommendationRequest]:
    """
    Read the number of items, and the rest of a row, of a product that ranks.

    Raises:
        InvalidRequest: An input is missing, `count` is out of range, or `exclude` is
            not a list.
    """
    ranking = product.ranking
    assert ranking is not None
    for name in product.inputs:
        if name not in row:
            needed = ", ".join(product.inputs)
            raise InvalidRequest(f"{name}: missing; needed are {needed}")
    own = dict(row)
    count, excluded = own.pop(LIST_SIZE, None), own.pop(EXCLUDE, None)
    if count is None:
        count = ranking.items
    elif type(count) is not int or not 1 <= count <= MAX_LIST_SIZE:
        rule = f"is no whole number, 1 to {MAX_LIST_SIZE}"
        raise InvalidRequest(f"{LIST_SIZE}: {count!r:.40}: {rule}")
    if not isinstance(excluded, (list, NoneType)):
        raise InvalidRequest(f"{EXCLUDE}: {excluded!r:.40}: is not a list of ids")
    if excluded and len(excluded) > MAX_EXCLUDED:
        problem = f"{len(excluded)} ids: at most {MAX_EXCLUDED} are allowed"
        raise InvalidRequest(f"{EXCLUDE}: {problem}")
    segment = own.get(ranking.segment_field)
    request = RecommendationRequest(
        request_id=own.pop(REQUEST_ID),
        user_id=own.pop("user_id"),
        event_time=own.pop(EVENT_TIME),
        exclude=excluded or (),
        fields=own,
        fallback=segment if isinstance(segment, str) else None,
    )
    return count, request


def fallback_of(product: DoorProduct, upstream: Upstream) -> Fallback:
    """Return the rule of a product; without one that fits it is the middle outcome."""
    rule = upstream.fallbacks.get(product.name)
    if rule is not None:
        try:
            # The outcomes of an answer are those of the release, not of the rule.
            return replace(rule, outcomes=product.outcomes)
        except InputError as error:
            text = "the rule of %s does not fit release %s: %s"
            log.warning(text, product.name, product.release, error)
    return Fallback(otherwise=product.outcomes[1], outcomes=product.outcomes)


class Deciders:
    """
    The deciders of all products; create and use it inside one event loop.

    Args:
        products: The products, at least one.
    """

    def __init__(self, products: Sequence[DoorProduct], upstream: Upstream) -> None:
        self._by_name = {one.name: Decider(one, upstream) for one in products}
        self._first = products[0].name
        self._closing: set[asyncio.Task[None]] = set()

    def find(self, name: str) -> Decider:
        """
        Return the decider of a product; the first one for an empty name.

        Raises:
            Refusal: No such product.
        """
        found = self._by_name.get(name or self._first)
        if found is None:
            hint = suggest(name, list(self._by_name))
            raise Refusal(404, f"{name!r:.80} is no product; {hint}")
        return found

    @property
    def products(self) -> list[DoorProduct]:
        """Return the products, in the order in which they were named."""
        return [one.product for one in self._by_name.values()]

    def counters(self) -> dict[str, Counters]:
        """Return the counters of each product's client."""
        return {name: one.client.counters for name, one in self._by_name.items()}

    def follow(self, product: DoorProduct) -> None:
        """Serve a newer release; requests of the older one are answered first."""
        old = self._by_name[product.name]
        new = self._by_name[product.name] = old.follow(product)
        log.info("%s is served with release %s", product.name, product.release)
        if new is not old:
            task = asyncio.get_running_loop().create_task(old.client.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Answer the requests in flight, and close the connections."""
        closing = [one.client.close() for one in self._by_name.values()]
        await asyncio.gather(*closing, *self._closing)
