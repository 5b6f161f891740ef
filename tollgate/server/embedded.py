"""A whole product on one machine: Redis, Triton, the release, proven by probes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from tollgate import schema
from tollgate.errors import ServerError
from tollgate.repair.background import drained
from tollgate.repository.release import PlannedLoad, plan_load
from tollgate.server import control, placement
from tollgate.server.address import announced
from tollgate.server.launcher import SPOOL_FOLDER, TritonServer
from tollgate.server.probe import probe
from tollgate.server.redis import EmbeddedRedis

log = logging.getLogger(__name__)


class Embedded(msgspec.Struct, frozen=True):
    """
    A product that is ready.

    Attributes:
        grpc_url: Where requests go, "host:port".
        metrics_url: Where Prometheus scrapes.
        store_url: The online store.
        release: What the decision step calls the release that answered the probes.
        triton: The server.
        redis: The store's process; None when the store was given by URL.
    """

    grpc_url: str
    metrics_url: str
    store_url: str
    release: str
    triton: TritonServer
    redis: EmbeddedRedis | None


@contextmanager
def serve(
    repository: Path,
    *,
    product: str = "fraud",
    state: Path,
    grpc_port: int = 0,
    metrics_port: int = 0,
    store_url: str | None = None,
    journal_url: str | None = None,
    model_config_name: str = "",
    host: str = "127.0.0.1",
) -> Iterator[Embedded]:
    """
    Serve the release of a product until the context ends.

    Args:
        repository: The model repository.
        product: The ensemble in it.
        state: Folder for the store, logs and the backend directory; other processes
            of this user find the server by it.
        grpc_port: TCP port on loopback; 0 takes a free one.
        metrics_port: Likewise.
        store_url: An online store that runs elsewhere; None starts Redis here.
        journal_url: Where decisions are journalled: None for the store, empty for
            nowhere.
        model_config_name: Named configuration to take where a model has it.
        host: Address to listen on; see `TritonServer`.

    Raises:
        RepositoryError: The release does not fit together.
        SetupError: This machine lacks something.
        ServerError: A process did not start, a model did not load, a probe failed.
    """
    loads = plan_load(repository, product=product, config_name=model_config_name)
    with ExitStack() as stack:
        redis = None
        if store_url is None:
            redis = stack.enter_context(EmbeddedRedis(state))
            store_url = redis.url
        stack.enter_context(drained(state / SPOOL_FOLDER, store_url))
        triton = stack.enter_context(
            TritonServer(
                repository,
                state=state,
                store_url=store_url,
                journal_url=journal_url,
                grpc_port=grpc_port,
                metrics_port=metrics_port,
                model_config_name=model_config_name,
                host=host,
            )
        )
        release = bring_up(triton, loads, product=product)
        stack.enter_context(
            announced(
                triton,
                state=state,
                repository=repository,
                product=product,
                store_url=store_url,
            )
        )
        yield Embedded(
            grpc_url=triton.grpc_url,
            metrics_url=triton.metrics_url,
            store_url=store_url,
            release=release,
            triton=triton,
            redis=redis,
        )


def bring_up(
    triton: TritonServer, loads: Sequence[PlannedLoad], *, product: str
) -> str:
    """
    Load a plan and prove that the product answers.

    Args:
        triton: A running server that has none of it.
        loads: What to load, in this order.
        product: The ensemble to ask.

    Returns:
        The release that answered.
    """
    gpu = placement.has_gpu()
    for load in loads:
        try:
            control.load_model(
                triton, load.name, config=placement.placed(load.config_json, gpu=gpu)
            )
        except ServerError as error:
            raise ServerError(load.name, f"did not load: {error.problem}") from error
    proof = probe(triton, product)
    # The probes' made-up entities are always new ones.
    degraded = proof.degraded & ~schema.Degraded.COLD_START
    if degraded:
        log.warning("%s is ready but degraded: %s", product, degraded.name)
    log.info("%s: release %s is ready at %s", product, proof.release, triton.grpc_url)
    return proof.release
