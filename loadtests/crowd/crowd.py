"""
One run of simulated users: a scenario or none, a request mix, and a target server.
"""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import msgspec

from clients.client import Client
from loadtests.crowd.mix import Part, read_mix
from loadtests.crowd.pace import Pace, users_at
from loadtests.crowd.purchases import Purchases
from loadtests.crowd.recorder import Recorder, UserRequest, kind_of
from loadtests.crowd.target import Target, local_target, remote_target
from loadtests.paced.calls import ANSWERED
from loadtests.paced.scenario import (
    SCENARIOS_FILE,
    Phase,
    Scenario,
    read_scenario,
    read_scenarios,
)
from tollgate.errors import ClientError, InputError, InvalidRequest

BY_HAND = "by hand"
# The number of users sets the rate then; a day is longer than any session.
_UNSHAPED = Scenario(phases=(Phase(seconds=86_400, rate=1),), warm_up_s=0)


def names() -> list[str]:
    """List the scenarios to choose from: all that inject no fault into the server."""
    known = read_scenarios(SCENARIOS_FILE)
    return [BY_HAND, *(name for name, one in known.items() if one.trouble is None)]


class Request(msgspec.Struct, frozen=True):
    """
    Result of one request.

    Attributes:
        name: Its product and rows.
        took_ms: Time from its sending to its end, retries included, ms.
        kind: "answered", or the reason for no answer.
    """

    name: str
    took_ms: float
    kind: str


class Crowd:
    """
    State that the users of one run share.

    Args:
        options: Options of the command line, or of the page.
        host: host:port; empty for the server of the state folder.

    Raises:
        TollgateError: The options are not valid, or no server runs.
    """

    def __init__(self, options: Namespace, *, host: str) -> None:
        self.name: str = options.scenario
        self.each_per_s: float = options.per_user
        self.scenario = _scenario(options)
        if self.each_per_s < 0 or (self.shaped and not self.each_per_s):
            problem = f"{self.each_per_s:g} is not above 0, as a scenario needs it"
            raise InputError("--per-user", problem)
        self._raw = Path(options.raw) if options.raw else None
        if self._raw and not self.shaped:
            raise InputError("--raw", "needs a --scenario")
        target = _target(options, host)
        self._parts = read_mix(options.mix, products=list(target.specs))
        seed = time.time_ns() % 2**31
        self._chance = random.Random(seed)
        self._clients: Mapping[str, Client] = {
            one: _client(target, one) for one in {part.product for part in self._parts}
        }
        self._purchases = {
            one: Purchases(target.specs[one], self.scenario, seed=seed)
            for one in self._clients
        }
        self.recorder = Recorder(store=self._raw is not None)
        self._begin_s = time.perf_counter()

    @property
    def shaped(self) -> bool:
        """Return whether a scenario sets the number of users."""
        return self.name != BY_HAND

    def begin(self) -> None:
        """Start the clock of the run."""
        self._begin_s = time.perf_counter()

    def since_s(self) -> float:
        """Return the time since the beginning, s."""
        return time.perf_counter() - self._begin_s

    def users(self, at_s: float) -> int:
        """Return the number of users that the scenario requires."""
        return users_at(self.scenario, at_s, each_per_s=self.each_per_s)

    def pace(self) -> Pace:
        """Make the pace of one more user."""
        return Pace(self.each_per_s, chance=self._chance, clock=time.perf_counter)

    def ask(self) -> Request:
        """
        Request one decision of the mix, with as many retries as the scenario allows.
        """
        (part,) = self._chance.choices(
            self._parts, weights=[one.share for one in self._parts]
        )
        rows = part.rows or self.scenario.rows
        at_s = self.since_s()
        columns, poisoned = self._purchases[part.product].take(rows, at_s=at_s)
        client, timeout_s = self._clients[part.product], self.scenario.timeout_ms / 1e3
        attempts, kind, answer = 0, "", None
        while kind != ANSWERED and attempts <= self.scenario.retries:
            attempts += 1
            try:
                answer, kind = client.decide(columns, deadline_s=timeout_s), ANSWERED
            except ClientError as error:
                kind = kind_of(error)
                if isinstance(error, InvalidRequest):
                    break
        took_s = self.since_s() - at_s
        self.recorder.add(
            UserRequest(at_s, took_s, rows, poisoned, attempts, kind, answer)
        )
        return Request(_name(part, rows), took_s * 1e3, kind)

    def end(self, *, command: str) -> str:
        """Write the raw result, if one is wanted; return a summary of the decisions."""
        recorder, seconds = self.recorder, max(self.since_s(), 1e-9)
        if self._raw is not None and recorder.requests:
            recorder.write(self._raw, self.scenario, name=self.name, command=command)
        share = 100 * recorder.degraded / max(recorder.decided + recorder.refused, 1)
        return (
            f"{recorder.requests:,} requests in {seconds:.1f} s, warm-up included: "
            f"{recorder.decided:,} decisions ({recorder.decided / seconds:,.0f}/s), "
            f"{recorder.refused:,} rows refused, {share:.1f} % degraded"
        )

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()


def _scenario(options: Namespace) -> Scenario:
    if options.scenario == BY_HAND:
        return _UNSHAPED.at(rows=options.rows or None)
    _, found = read_scenario(options.scenario)
    if found.trouble is not None:
        problem = f"{options.scenario} does something to the server: loadtests.run can"
        raise InputError("--scenario", problem)
    return found.at(
        rate=options.rate or None,
        seconds=options.seconds or None,
        rows=options.rows or None,
    )


def _target(options: Namespace, host: str) -> Target:
    if host:
        url = host.removeprefix("http://").rstrip("/")
        return remote_target(url, repository=Path(options.repository))
    return local_target(Path(options.state))


def _client(target: Target, product: str) -> Client:
    return Client(
        target.grpc_url,
        product=product,
        inputs=target.inputs(product),
        fields=target.fields(product),
    )


def _name(part: Part, rows: int) -> str:
    return part.product if rows == 1 else f"{part.product}, {rows} rows"
