"""
Prepare the candidates of the most active users, for the first step to serve.

Each user's events are read as the first step reads them, and its candidate stage and
the release's model find and score the candidates. The result goes into the store, one
entry per user, and replaces the one before. An entry that still holds stays until half
of its life has passed, so a run costs little where users have no new events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.backfill.copying import scanned_keys
from tollgate.backfill.materialize import Progress, run_commands
from tollgate.backfill.pace import open_pace
from tollgate.engine.candidate_stage import CandidateStage
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.row_batches import Batch
from tollgate.engine.scoring_model import ScoringModel
from tollgate.errors import InputError, RepositoryError
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import unpack_values
from tollgate.policy import POLICY_FILE
from tollgate.ranking.catalogue import RETRIEVAL_FILE, Catalogue
from tollgate.ranking.history import UserHistory
from tollgate.ranking.prepared import (
    PreparedCandidates,
    decode_prepared,
    encode_prepared,
    history_hash,
    life_of,
    prepared_key,
)
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import read_release, verify_active
from tollgate.repository.releases.rendering import ranker_hash
from tollgate.repository.releases.served_versions import load_policy_of
from tollgate.schema import MAX_BATCH_ROWS
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import Command, RedisStore
from tollgate.store.stock_view import StockView
from tollgate.store.store_events import Packer, Purchases

F64 = npt.NDArray[np.float64]

_US_PER_DAY = 86_400 * 10**6
# An expired entry stays so long again, so that a late run shows in the metrics.
_STORED_LIVES = 2


class PreparedCounts(msgspec.Struct):
    """
    Count the results of a run.

    Attributes:
        users: Users that were named or chosen.
        prepared: Users whose candidates were written.
        fresh: Users whose candidates hold for at least half of their life.
        without_events: Users of whom a request would read no event: there are none, or
            all are older than every window.
        bytes: Size of what was written.
    """

    users: int = 0
    prepared: int = 0
    fresh: int = 0
    without_events: int = 0
    bytes: int = 0


class PreparedRelease(msgspec.Struct, frozen=True, eq=False):
    """
    What a release finds and scores candidates with.

    Attributes:
        ranker: Hash of its files; `ranker_hash`.
        stock: Name of the list of items out of stock; empty for none.
    """

    spec: FeatureSpec
    stage: CandidateStage
    model: ScoringModel
    ranker: int
    stock: str


def open_ranking_release(repository: Path, product: str) -> PreparedRelease:
    """
    Open the active release of a product that ranks.

    Raises:
        RepositoryError: A file is missing, was changed or cannot be used.
        InputError: The product does not rank.
    """
    models = read_product(repository, product)
    release = read_release(repository, product=product)
    verify_active(repository, release)
    first, model, last = (
        repository / step / str(release.versions[step])
        for step in (models.features_step, models.model_step, models.decision_step)
    )
    spec = load_spec(first / SPEC_FILE)
    rules = load_policy_of(last, spec).ranking
    if rules is None or spec.history is None:
        raise InputError(product, f"ranks nothing: see {last / POLICY_FILE}")
    if not (model / MODEL_FILE).is_file():
        raise RepositoryError(model / MODEL_FILE, "no such file")
    catalogue = Catalogue.load(first)
    retrieval = OnnxSession(first / RETRIEVAL_FILE, intra_op_threads=1)
    return PreparedRelease(
        spec=spec,
        stage=CandidateStage(catalogue, retrieval, spec),
        model=ScoringModel(OnnxSession(model / MODEL_FILE, intra_op_threads=1)),
        ranker=ranker_hash(release, models),
        stock=rules.stock,
    )


def most_active_users(
    spec: FeatureSpec, store: RedisStore, users: int, *, now_us: int
) -> list[bytes]:
    """
    Return the ids of the users with the most events per day, the most active first.

    The rate is that of the events that the store holds, over the time since the oldest
    of them and one day more: so a user who has just come is not the first.

    Args:
        users: Number of users at most.
        now_us: The time, µs.

    Raises:
        InputError: The store is a cluster, which cannot list its keys.
        StoreError: The store did not reply, or refused.
    """
    assert spec.history is not None
    entity = spec.entities[spec.history.entity]
    prefix = Packer(spec).key(spec.history.entity, b"")
    rates: dict[bytes, float] = {}
    for keys in scanned_keys(store, prefix):
        (found,) = run_commands(store, [(b"MGET", *keys)])
        values = [one or b"" for one in found]
        entries = unpack_values(values, columns=[len(entity.columns)] * len(keys))
        starts, times = entries.entries.starts, entries.entries.time_us
        for key, start, stop in zip(keys, starts, starts[1:], strict=False):
            if stop > start:
                days = max(now_us - int(times[start]), 0) / _US_PER_DAY + 1
                rates[key[len(prefix) :]] = int(stop - start) / days
    ranked = sorted(rates, key=lambda user: (-rates[user], user))
    return ranked[:users]


def prepare_lists(
    release: PreparedRelease,
    store: RedisStore,
    users: Sequence[bytes],
    *,
    life_us: int,
    rate_per_s: float | None = 0.0,
    progress: Progress | None = None,
    wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> PreparedCounts:
    """
    Find and score the candidates of users, and write them into the store.

    Items that are out of stock now are no candidates. Run it at least twice in a life,
    or lists expire.

    Args:
        release: The release that will serve them.
        users: Their ids.
        life_us: Mean time for which an entry holds; see `life_of`.
        rate_per_s: Most users per second; see `Pace`.
        progress: Called with (users done, users in all).
        wall_us: The clock, µs since the epoch.

    Raises:
        StoreError: The store did not reply, or refused; it is safe to repeat.
    """
    spec, stage = release.spec, release.stage
    stock = StockView(store, stage.catalogue, product=spec.product, name=release.stock)
    online = OnlineFeatures(spec, store)
    pace = open_pace(spec, store, rate_per_s)
    done = PreparedCounts(users=len(users))
    for start in range(0, len(users), MAX_BATCH_ROWS):
        started_s = pace.begin()
        part = list(users[start : start + MAX_BATCH_ROWS])
        if release.stock:
            stock.refresh()
        now_us = wall_us()
        history = _read_histories(online, part, now_us=now_us)
        keys = [prepared_key(spec.product, one) for one in part]
        (held,) = run_commands(store, [(b"MGET", *keys)])
        rows = []
        for row, raw in enumerate(held):
            if not (history.known[row] and history.count[row]):
                done.without_events += 1
            elif _is_fresh(release, raw, history, row, now_us=now_us):
                done.fresh += 1
            else:
                rows.append(row)
        commands = _entries(
            release,
            [part[row] for row in rows],
            history.take(np.array(rows, np.intp)),
            available=stock.available(),
            life_us=life_us,
            made_us=now_us,
        )
        run_commands(store, commands)
        done.prepared += len(commands)
        done.bytes += sum(len(one[2]) for one in commands)
        pace.end(started_s, len(part))
        if progress:
            progress(start + len(part), len(users))
    return done


def _read_histories(
    online: OnlineFeatures, users: list[bytes], *, now_us: int
) -> UserHistory:
    """Read the newest events of users, as a request of each would now."""
    spec, rows = online.spec, len(users)
    assert spec.history is not None
    requests = Purchases(
        transaction_id=[b"prepare"] * rows,
        entity_id=[
            users if at == spec.history.entity else [b""] * rows
            for at in range(len(spec.entities))
        ],
        event_time_us=np.full(rows, now_us),
        cents=np.zeros(rows, np.int64),
    )
    (vectors,) = online.score([requests], write=[False])
    assert vectors.history is not None
    return vectors.history


def _is_fresh(
    release: PreparedRelease,
    raw: bytes | None,
    history: UserHistory,
    row: int,
    *,
    now_us: int,
) -> bool:
    """Return whether an entry holds for at least half of its life."""
    if not raw:
        return False
    held = decode_prepared(raw, items=release.stage.catalogue.size)
    return (
        held is not None
        and held.ranker == release.ranker
        and abs(now_us - held.made_us) <= held.life_us // 2
        and held.history == history_hash(history, row)
    )


def _entries(
    release: PreparedRelease,
    users: list[bytes],
    history: UserHistory,
    *,
    available: npt.NDArray[np.bool_],
    life_us: int,
    made_us: int,
) -> list[Command]:
    """Build the commands that write the entries of users, made from their events."""
    rows = len(users)
    if not rows:
        return []
    batch = Batch(
        ids={},
        cents=np.zeros(rows, np.int64),
        time_us=np.full(rows, made_us),
        errors={},
        bounds=[0, rows],
        dry=[True],
        counts=[0],
    )
    found = release.stage.fill(batch, history, available=available)
    relevance = release.model.probabilities(found.features)
    commands: list[Command] = []
    for row, user in enumerate(users):
        items = found.ranking["items"][row]
        count = int(np.count_nonzero(items >= 0))
        life = life_of(user, life_us)
        made = PreparedCandidates(
            ranker=release.ranker,
            history=history_hash(history, row),
            made_us=made_us,
            life_us=life,
            items=items[:count],
            sources=found.ranking["sources"][row, :count],
            relevance=relevance[row, :count],
        )
        stored_ms = str(_STORED_LIVES * life // 1000).encode()
        key = prepared_key(release.spec.product, user)
        commands.append((b"SET", key, encode_prepared(made), b"PX", stored_ms))
    return commands


def read_users(path: Path) -> list[bytes]:
    """
    Read ids of users from a text file, one per line; an id counts once.

    Raises:
        InputError: The file cannot be read, or names no user.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror}") from error
    users = list(dict.fromkeys(one.strip() for one in lines if one.strip()))
    if not users:
        raise InputError(path, "names no user")
    return users
