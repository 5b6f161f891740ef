"""
Benefit of a cache before the model: `python -m loadtests.prediction_cache`.

The repository's own offline code computes the feature vectors of Zipf traffic after a
past, cast to float32 as they are served; no id has more purchases than the store holds
for one. They go through the model in batches, once without a cache and once behind a
cache that is keyed on the bytes of a row and forgets after 10 s. Reported are the hit
ratio and, for both, the processor time per row, on one thread. The server does not run;
`python -m loadtests.prediction_cache_served` loads one that has Triton's own cache.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.surroundings import CHECKOUT
from tollgate.errors import TollgateError
from tollgate.features.offline import build
from tollgate.features.spec import FeatureSpec, load_spec
from tollgate.history import History, history_of

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Run = Callable[[F32], F32]

TTL_US = 10_000_000
_BATCHES = (1, 16)
_RATES = (200, 2_000, 5_000)
_SECONDS = 20
_ROUNDS = 3
_ZIPF = 1.1
_CUSTOMERS, _TERMINALS, _PAST, _PAST_DAYS = 50_000, 10_000, 400_000, 38
_PRICES = 10
_APPLICATIONS = 20_000
_REPEATED_WITHIN_US = 5_000_000
_START_US = 1_525_132_800_000_000
_DAY_US = 86_400_000_000
_REPOSITORY = CHECKOUT / "model_repository"


class Asked(msgspec.Struct, frozen=True, eq=False):
    """
    Rows for a model.

    Attributes:
        what: Description of the rows.
        features: float32 [N, F].
        time_us: Time of each; int64 [N], ascending.
    """

    what: str
    features: F32
    time_us: I64


class PureCache:
    """
    Cache of a pure function of a row, with a time to live; unbounded, for a short run.

    Args:
        run: Function from rows to rows; the result for a row depends on that row alone.
        ttl_us: Time to live of a result, from when it was computed.
    """

    def __init__(self, run: Run, *, ttl_us: int) -> None:
        self.hits = 0
        self._run = run
        self._ttl_us = ttl_us
        self._known: dict[bytes, F32] = {}
        self._made: deque[tuple[int, bytes]] = deque()

    def answer(self, features: F32, *, now_us: int) -> F32:
        """Answer a batch; run the function for unknown rows, in one call."""
        known, made, oldest_us = self._known, self._made, now_us - self._ttl_us
        while made and made[0][0] < oldest_us:
            del known[made.popleft()[1]]
        data, width = features.tobytes(), features.shape[1] * features.itemsize
        keys = [data[at : at + width] for at in range(0, len(data), width)]
        missing = [row for row, key in enumerate(keys) if key not in known]
        self.hits += len(keys) - len(missing)
        if missing:
            whole = len(missing) == len(keys)
            said = self._run(features if whole else features[missing])
            for row, answer in zip(missing, said, strict=True):
                if keys[row] not in known:
                    made.append((now_us, keys[row]))
                known[keys[row]] = answer
            if whole:
                return said
        return np.array([known[key] for key in keys])


class Cost(msgspec.Struct, frozen=True):
    """
    Processor time per row, µs, without and with the cache, and the hit ratio in %.
    """

    hits_percent: float
    plain_us: float
    cached_us: float


def cost_of(asked: Asked, run: Run, *, rows: int) -> Cost:
    """Send rows through a model with and without a cache, in batches, in turns."""
    batches = list(_batches(asked, rows=rows))
    plain, cached, hits = [], [], 0
    for _ in range(_ROUNDS):
        began = time.thread_time()
        for features, _now_us in batches:
            run(features)
        plain.append(time.thread_time() - began)
        cache = PureCache(run, ttl_us=TTL_US)
        began = time.thread_time()
        for features, now_us in batches:
            cache.answer(features, now_us=now_us)
        cached.append(time.thread_time() - began)
        hits = cache.hits
    count = sum(len(features) for features, _ in batches)
    return Cost(
        hits_percent=100 * hits / count,
        plain_us=min(plain) / count * 1e6,
        cached_us=min(cached) / count * 1e6,
    )


def _batches(asked: Asked, *, rows: int) -> Iterator[tuple[F32, int]]:
    for first in range(0, len(asked.features) - rows + 1, rows):
        last = first + rows
        yield asked.features[first:last], int(asked.time_us[last - 1])


def zipf(
    random: np.random.Generator, *, among: int, count: int, most: int | None = None
) -> I64:
    """
    Draw numbers from 0 with a Zipf distribution; int64 [count].

    Args:
        random: Source of the draws.
        among: Number of different values.
        count: Number of draws.
        most: Maximum draws of one value; the excess goes to values with room, by the
            same weights. None for no limit.
    """
    weights = np.arange(1, among + 1, dtype=np.float64) ** -_ZIPF
    drawn = random.choice(among, count, p=weights / weights.sum())
    while most is not None:
        order = np.argsort(drawn, kind="stable")
        ids = drawn[order]
        over = order[np.arange(count) - np.searchsorted(ids, ids) >= most]
        if not len(over):
            break
        room = np.where(np.bincount(drawn, minlength=among) < most, weights, 0.0)
        drawn[over] = random.choice(among, len(over), p=room / room.sum())
    return drawn.astype(np.int64)


def repeated(asked: Asked, *, share: float, seed: int = 0) -> Asked:
    """Repeat some rows within 5 s; `share` is the repeated part of the result."""
    random = np.random.default_rng(seed)
    count = round(len(asked.features) * share / (1 - share))
    again = random.choice(len(asked.features), count, replace=False)
    later_us = random.integers(1, _REPEATED_WITHIN_US, count)
    time_us = np.concatenate([asked.time_us, asked.time_us[again] + later_us])
    features = np.concatenate([asked.features, asked.features[again]])
    order = np.argsort(time_us, kind="stable")
    what = f"{asked.what}, {share:.0%} asked again"
    return Asked(what, features[order], time_us[order])


def fraud(spec: FeatureSpec, *, rate: int, prices: int = 0) -> Asked:
    """
    Generate purchases of Zipf customers at Zipf terminals, after 38 days of a past.

    No id has more purchases than the store holds for one, so these are the features
    that a server would read.
    The past is thin for such a rate, which flatters a cache: with fewer purchases fewer
    customers differ in their features.

    Args:
        spec: The fraud product's features.
        rate: Purchases a second, for 20 s.
        prices: Number of different amounts; 0: any cent of a log-normal amount.
    """
    random = np.random.default_rng(rate)
    now = rate * _SECONDS
    count = _PAST + now
    past_us = random.integers(0, _PAST_DAYS * _DAY_US, _PAST)
    live_us = _PAST_DAYS * _DAY_US + random.integers(0, _SECONDS * 1_000_000, now)
    time_us = _START_US + np.sort(np.concatenate([past_us, live_us]))
    cents = np.maximum(np.rint(random.lognormal(8.0, 0.8, count)), 1).astype(np.int64)
    if prices:
        cents = random.choice(cents[:prices], count)
    caps = {entity.key: entity.cap for entity in spec.entities}
    customers = zipf(random, among=_CUSTOMERS, count=count, most=caps["customer_id"])
    terminals = zipf(random, among=_TERMINALS, count=count, most=caps["terminal_id"])
    label = (random.random(count) < 0.01).astype(np.int8)
    history = History(
        source="made up",
        transaction_id=[b"%012d" % number for number in range(count)],
        entity_id={
            "customer_id": [b"C%06d" % one for one in customers.tolist()],
            "terminal_id": [b"T%06d" % one for one in terminals.tolist()],
        },
        event_time_us=time_us,
        cents=cents,
        label=label,
        label_time_us=time_us,
    )
    features = build(spec, history)[_PAST:].astype(np.float32)
    what = f"fraud, {rate} a second, " + (f"{prices} prices" if prices else "any cent")
    return Asked(what, features, time_us[_PAST:])


def credit(spec: FeatureSpec, *, rate: int, popular: bool) -> Asked:
    """
    Generate applications for 20 s: each once, or Zipf among 20,000 of them.

    Args:
        spec: The credit product's features.
        rate: Applications a second.
        popular: True if the same ones are repeated.
    """
    import polars as pl

    from tollgate.simulate.credit import simulate_credit

    random = np.random.default_rng(rate)
    count = rate * _SECONDS
    kinds = _APPLICATIONS if popular else count
    # The simulator gives a few people longer employment than the product accepts.
    years = pl.col("employment_years").clip(upper_bound=60)
    frame = simulate_credit(rows=kinds, seed=7).with_columns(years)
    features = build(spec, history_of(frame, spec=spec, source="simulated"))
    row = zipf(random, among=kinds, count=count) if popular else np.arange(count)
    what = "Zipf among 20,000" if popular else "each once"
    time_us = np.sort(random.integers(0, _SECONDS * 1_000_000, count))
    asked = features[row].astype(np.float32)
    return Asked(f"credit, {rate} a second, {what}", asked, time_us)


def runner(model: Path) -> Run:
    """Open a model as its step does: one thread, probabilities alone."""
    from tollgate.server.onnx_session import OnnxSession

    session = OnnxSession(model, intra_op_threads=1)

    def run(features: F32) -> F32:
        (said,) = session.run(["probabilities"], {"features": features})
        return said

    return run


def measure(rates: Sequence[int]) -> Iterator[str]:
    """Measure both products; yield the lines of a table."""
    specs = {
        name: load_spec(_REPOSITORY / f"{name}_features" / "1" / "features.yaml")
        for name in ("fraud", "credit")
    }
    yield "| asked | rows a batch | found | model µs/row | with cache µs/row | saved |"
    yield "|---|---:|---:|---:|---:|---:|"
    for rate in rates:
        any_cent = fraud(specs["fraud"], rate=rate)
        few = fraud(specs["fraud"], rate=rate, prices=_PRICES)
        for asked in (any_cent, few, repeated(any_cent, share=0.05)):
            yield from _lines(asked, product="fraud")
        once = credit(specs["credit"], rate=rate, popular=False)
        often = credit(specs["credit"], rate=rate, popular=True)
        for asked in (once, repeated(once, share=0.05), often):
            yield from _lines(asked, product="credit")


def _lines(asked: Asked, *, product: str) -> Iterator[str]:
    run = runner(_REPOSITORY / f"{product}_model" / "1" / "model.onnx")
    for rows in _BATCHES:
        cost = cost_of(asked, run, rows=rows)
        yield (
            f"| {asked.what} | {rows} | {cost.hits_percent:.2f} % "
            f"| {cost.plain_us:.1f} | {cost.cached_us:.1f} "
            f"| {cost.plain_us - cost.cached_us:+.1f} |"
        )


def main(arguments: Sequence[str]) -> int:
    """Measure and print a table; a known error prints one line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.prediction_cache")
    parser.add_argument("--rates", type=int, nargs="+", default=_RATES)
    given = parser.parse_args(arguments)
    try:
        for line in measure(given.rates):
            print(line, flush=True)
    except TollgateError as error:
        print(f"loadtests.prediction_cache: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
