"""Serve complete products on one machine: Redis, Triton and probed releases."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from tollgate.repair.drain import draining
from tollgate.repository.slo import Form
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.address import announced
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.copy_slots import Slots
from tollgate.server.serving.initial_load import ProductLoader, load_products
from tollgate.server.serving.loaded import SLOTS_FOLDER
from tollgate.server.serving.release_serving import Serving
from tollgate.server.triton.launcher import SPOOL_FOLDER, TritonServer
from tollgate.tracing import TRACE_FOLDER, Tracing
from tollgate.tracing.collecting import SpanCollector

log = logging.getLogger(__name__)


class Embedded(msgspec.Struct, frozen=True):
    """
    Products that are served.

    Attributes:
        grpc_url: Address for requests, "host:port".
        metrics_url: Address that Prometheus scrapes.
        serving: Loaded state by product; all products are ready, except those that
            `recall` left out.
        problems: Product to the reason why it has nothing loaded.
        redis: The store's process; None if the store was given by URL.
    """

    grpc_url: str
    metrics_url: str
    store_url: str
    triton: TritonServer
    serving: Mapping[str, Serving]
    problems: Mapping[str, str]
    redis: EmbeddedRedis | None


def _say_what_runs(redis: EmbeddedRedis) -> None:
    """Log which store runs, and a warning about it in the same line."""
    engine = redis.engine
    assert engine is not None
    if engine.warning:
        log.warning("%s", engine.warning)
    else:
        log.info("the store is %s, %s", engine.writes, engine.program)


@contextmanager
def serve(
    repository: Path,
    *,
    products: Sequence[str] = ("fraud",),
    state: Path,
    grpc_port: int = 0,
    metrics_port: int = 0,
    store_url: str | None = None,
    store_server: str = "",
    journal_url: str | None = None,
    model_config_name: str = "",
    cache_mb: int = 0,
    allocator: str = "",
    host: str = "127.0.0.1",
    recall: bool = False,
    tracing: Tracing | None = None,
    snapshot: RepositorySnapshot | None = None,
    form: Form | Literal[""] = "",
) -> Iterator[Embedded]:
    """
    Serve the releases of products until the context ends.

    Args:
        products: The ensembles in it, at least one.
        state: Folder for the store, logs and the backend directory; other processes of
            this user find the server by it.
        grpc_port: TCP port on loopback; 0 takes a free one.
        metrics_port: TCP port of Prometheus metrics on loopback; 0 takes a free one.
        store_url: An online store that runs elsewhere; None starts one here.
        store_server: The redis-server or valkey-server to start, by its path or its
            name on PATH; empty for the one that pip installed.
        journal_url: Address of the stream for decisions: None for the store, empty for
            none.
        model_config_name: Named configuration to use if a model has it.
        cache_mb: Memory for Triton's response cache; see `TritonServer`.
        allocator: Library to allocate with; see `TritonServer`.
        host: Address to listen on; see `TritonServer`.
        recall: Serve what can be served. If a product's release cannot be served, serve
            what was served here before; leave out a product that does not load, as long
            as another does.
        tracing: Destination of traces of requests; None makes none.
        snapshot: The repository, with that named configuration, as the caller checked
            it; None reads it.
        form: Form in which all products are served; empty for that of each slo.yaml.

    Raises:
        RepositoryError: A release does not fit together, or cannot be served in the
            form.
        SetupError: This machine lacks something.
        ServerError: A process did not start, a model did not load, a probe failed.
    """
    if snapshot is None:
        snapshot = RepositorySnapshot(repository, config_name=model_config_name)
    loaders = [
        ProductLoader(snapshot, product, state=state, form=form) for product in products
    ]
    if not recall:
        for one in loaders:
            one.require_plan()
    with ExitStack() as stack:
        redis = None
        if store_url is None:
            redis = stack.enter_context(
                EmbeddedRedis(state, allocator=allocator, server=store_server)
            )
            store_url = redis.url
            _say_what_runs(redis)
        for product in products:
            spool = state / SPOOL_FOLDER / product
            stack.enter_context(draining(spool, store_url))
        spans = None
        if tracing is not None:
            folder = state.resolve() / TRACE_FOLDER
            spans = stack.enter_context(SpanCollector(tracing, folder=folder))
        slots = Slots(state / SLOTS_FOLDER)
        slots.begin(repository)
        triton = stack.enter_context(
            TritonServer(
                slots.folder,
                state=state,
                store_url=store_url,
                journal_url=journal_url,
                grpc_port=grpc_port,
                metrics_port=metrics_port,
                model_config_name=model_config_name,
                cache_mb=cache_mb,
                allocator=allocator,
                host=host,
                products=len(products),
                spans=spans,
            )
        )
        serving = {one.product: one.serving(triton, slots) for one in loaders}
        problems = load_products(loaders, serving, tolerant=recall)
        stack.enter_context(
            announced(
                triton,
                state=state,
                repository=repository,
                products=products,
                store_url=store_url,
            )
        )
        yield Embedded(
            grpc_url=triton.grpc_url,
            metrics_url=triton.metrics_url,
            store_url=store_url,
            triton=triton,
            serving=serving,
            problems=problems,
            redis=redis,
        )
