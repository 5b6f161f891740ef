"""One run of simulated users: a scenario or none, a request mix, a target server."""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadtests.crowd.target import Target, local_target, remote_target
from loadtests.paced.raw import About, Raw, write_raw
from loadtests.paced.requests import poison_rows, shift_late
from loadtests.paced.scenario import (
    SCENARIOS_FILE,
    Phase,
    Scenario,
    read_scenario,
    read_scenarios,
)
from tollgate.errors import InputError
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.load.results import ANSWERED, CALL, NO_ANSWER, fault_bits
from tollgate.load.surroundings import measured_on
from tollgate.load.synthetic import synthetic_purchases
from tollgate.schema import AMOUNT, MAX_BATCH_ROWS
from tollgate_client import (
    Client,
    ClientError,
    DeadlineExceeded,
    Decisions,
    InvalidRequest,
)

# The request mix of the users: share of each product, and rows per request.


class Part(msgspec.Struct, frozen=True):
    """
    One kind of request.

    Attributes:
        rows: Rows in each request; 0 for as many as the scenario has.
        share: Share of all requests, 0 to 1.
    """

    product: str
    rows: int
    share: float


def read_mix(text: str, *, products: Sequence[str]) -> tuple[Part, ...]:
    """
    Parse a request mix.

    Args:
        text: PRODUCT[:ROWS][=WEIGHT], repeated after each comma; weight 1 by default.
            Empty for fraud alone, or else the first product.

    Raises:
        InputError: The text is not a mix.
    """
    usual = "fraud" if "fraud" in products else products[0]
    parts = [_part(one, products) for one in (text or usual).split(",")]
    total = sum(part.share for part in parts)
    return tuple(
        msgspec.structs.replace(part, share=part.share / total) for part in parts
    )


def _part(text: str, products: Sequence[str]) -> Part:
    kind, _, weight = text.strip().partition("=")
    product, colon, rows = kind.partition(":")
    if product not in products:
        served = ", ".join(products)
        raise InputError("--mix", f"{product!r} is none of those served: {served}")
    if colon and not (rows.isdecimal() and 1 <= int(rows) <= MAX_BATCH_ROWS):
        raise InputError("--mix", f"{rows!r} rows are not 1 to {MAX_BATCH_ROWS}")
    try:
        share = float(weight or 1)
    except ValueError:
        share = 0.0
    if not 0 < share < float("inf"):
        raise InputError("--mix", f"{weight!r} is no weight above 0")
    return Part(product, int(rows or 0), share)


# Number of users that a scenario needs, and the wait of each between requests.


def rate_at(scenario: Scenario, at_s: float) -> float:
    """Return the requests per second at a moment; 0 after the end."""
    for phase in scenario.phases:
        if at_s < phase.seconds:
            return phase.rate + (phase.end_rate - phase.rate) * at_s / phase.seconds
        at_s -= phase.seconds
    return 0.0


def users_at(scenario: Scenario, at_s: float, *, each_per_s: float) -> int:
    """
    Return the number of users at a moment.

    Args:
        scenario: Sets the rate.
        at_s: Time from its beginning, s.
        each_per_s: Requests per second of one user, above 0.
    """
    return max(1, round(rate_at(scenario, at_s) / each_per_s))


class Pace:
    """
    The times at which one user sends requests: random, at a given mean rate.

    A user who still waits for an answer sends late, and never sends the requests
    that he missed meanwhile: that is the closed loop. Many users with low rates come
    near an open one.

    Args:
        each_per_s: Requests per second; 0 sends as soon as there is an answer.
        clock: Returns the time, s.
    """

    def __init__(
        self, each_per_s: float, *, chance: random.Random, clock: Callable[[], float]
    ) -> None:
        self._each_per_s, self._chance, self._clock = each_per_s, chance, clock
        self._due_s = clock()

    def wait_s(self) -> float:
        """Return the time until the next request, s."""
        if not self._each_per_s:
            return 0.0
        now_s = self._clock()
        self._due_s += self._chance.expovariate(self._each_per_s)
        self._due_s = max(self._due_s, now_s)
        return self._due_s - now_s


# Endless synthetic purchases, generated while users send requests.

_AT_ONCE = 256  # rows drawn at once: a millisecond that no user waits for
_OLD_S = 5.0  # age of the newest: not ahead of any clock


class Purchases:
    """
    Generator of the purchases of one product, as a scenario has them.

    Args:
        spec: Feature spec; says what its requests contain.
        scenario: Says which rows break a rule, and when the purchases shift.
        seed: Seed of the draws; each seed gives new ids.

    Raises:
        InputError: The product has no input that the scenario could change.
    """

    def __init__(self, spec: FeatureSpec, scenario: Scenario, *, seed: int) -> None:
        if (scenario.poison or scenario.shift) and AMOUNT not in spec.columns:
            problem = f"{spec.product} has no amount that it could change"
            raise InputError("--scenario", problem)
        self._spec, self._scenario = spec, scenario
        self._chance = np.random.default_rng(seed)
        self._columns: dict[str, Any] = {}
        self._bad = np.zeros(0, np.bool_)
        self._next = 0

    def take(self, rows: int, *, at_s: float) -> tuple[dict[str, Any], int]:
        """
        Take the next purchases.

        Args:
            rows: 1 to 32.
            at_s: Time from the beginning of the scenario, s.

        Returns:
            Columns of a request, and how many of its rows break a rule.
        """
        if self._next + rows > len(self._bad):
            self._draw(at_s)
        part = slice(self._next, self._next + rows)
        self._next += rows
        columns = {name: column[part] for name, column in self._columns.items()}
        return columns, int(self._bad[part].sum())

    def _draw(self, at_s: float) -> None:
        scenario, chance = self._scenario, self._chance
        first_us = round((time.time() - _OLD_S) * 1e6) - _AT_ONCE * 1_000
        seed = int(chance.integers(2**31))
        drawn = synthetic_purchases(self._spec, _AT_ONCE, seed=seed, first_us=first_us)
        columns = {name: np.asarray(column) for name, column in drawn.items()}
        if scenario.shift is not None:
            late = np.full(_AT_ONCE, at_s >= scenario.shift.at_s)
            shift_late(columns, scenario.shift, late, chance)
        self._bad = chance.random(_AT_ONCE) < scenario.poison
        if self._bad.any():
            poison_rows(columns, np.flatnonzero(self._bad))
        self._columns, self._next = columns, 0


# Write the results of the users' requests as raw results, as open-loop runs do.

DRIVER = "locust"


class UserRequest(msgspec.Struct, frozen=True):
    """
    One request.

    Attributes:
        at_s: Time at which it was sent, from the beginning, s.
        took_s: Time until its answer, s.
        poisoned: Number of these rows that break a rule.
        kind: Result: "answered", or the reason for no answer.
        answer: The answer; None without one.
    """

    at_s: float
    took_s: float
    rows: int
    poisoned: int
    attempts: int
    kind: str
    answer: Decisions | None


def kind_of(error: ClientError) -> str:
    """Return the reason for no answer, in the terms of the open loop."""
    if isinstance(error, DeadlineExceeded):
        return NO_ANSWER
    code = getattr(error.__cause__, "code", None)
    return str(code().name) if code else type(error).__name__


class Recorder:
    """
    Results of all requests so far.

    Attributes:
        decided: Rows with a decision.
        refused: Rows with an error instead of a decision.
        degraded: Rows with a degraded bit other than COLD_START.
    """

    def __init__(self, *, store: bool) -> None:
        self.requests = self.decided = self.refused = self.degraded = 0
        self._store = store
        self._rows: list[tuple[int, ...]] = []
        self._kinds = {ANSWERED: 0}

    def add(self, one: UserRequest) -> None:
        """Count a request; store it, if that was wanted."""
        decided, degraded, reviewed, declined, bits = _counts(one.answer)
        refused = one.rows - decided if one.answer is not None else 0
        self.requests += 1
        self.decided += decided
        self.refused += refused
        self.degraded += degraded
        if not self._store:
            return
        kind = self._kinds.setdefault(one.kind, len(self._kinds))
        due_us, took_us = round(one.at_s * 1e6), round(one.took_s * 1e6)
        self._rows.append(
            (
                *(due_us, 0, took_us, kind, one.rows, decided, refused, degraded),
                *(reviewed, declined, one.poisoned, one.attempts, bits),
            )
        )

    def write(self, path: Path, scenario: Scenario, *, name: str, command: str) -> None:
        """Write a raw result; a request is due when it is sent."""
        calls = np.sort(np.array(self._rows, CALL), order="due_us")
        about = About(
            name=name,
            scenario=scenario,
            run=1,
            label=DRIVER,
            seed=0,
            driver=DRIVER,
            connections=1,
            command=command,
            measured=measured_on(),
            store="of its own",
            kinds=tuple(self._kinds),
            examples={},
            marks=(),
            sender_cpu_s=0.0,
        )
        write_raw(path, Raw(about, calls, {}))


def _counts(answer: Decisions | None) -> tuple[int, int, int, int, int]:
    if answer is None:
        return 0, 0, 0, 0, 0
    words = answer.decision.tolist()
    bits = [fault_bits(one) for one in answer.degraded.tolist()]
    union = 0
    for one in bits:
        union |= one
    degraded = sum(1 for one in bits if one)
    decided = sum(1 for word in words if word)
    return decided, degraded, words.count("review"), words.count("decline"), union


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
        """Request a decision of the mix, with the retries that the scenario allows."""
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
