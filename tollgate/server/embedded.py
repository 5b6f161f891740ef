"""A whole product on one machine: Redis, Triton, the release, proven by probes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from tollgate.errors import PolicyError, RepositoryError, SpecError
from tollgate.repair.background import drained
from tollgate.repository.release import read_release
from tollgate.repository.serving_plan import ServingPlan, plan_serving
from tollgate.server.address import announced
from tollgate.server.launcher import SPOOL_FOLDER, TritonServer
from tollgate.server.redis import EmbeddedRedis
from tollgate.server.serving import Serving
from tollgate.server.slots import Slots

log = logging.getLogger(__name__)

SLOTS_FOLDER = "served"  # in the state folder: what the server reads


class Embedded(msgspec.Struct, frozen=True):
    """
    A product that is ready.

    Attributes:
        grpc_url: Where requests go, "host:port".
        metrics_url: Where Prometheus scrapes.
        store_url: The online store.
        release: What the decision step calls the release that answered the probes.
        triton: The server.
        serving: What it has loaded of the product.
        redis: The store's process; None when the store was given by URL.
    """

    grpc_url: str
    metrics_url: str
    store_url: str
    release: str
    triton: TritonServer
    serving: Serving
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
    recall: bool = False,
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
        recall: Serve what was served here before, when the release cannot be.

    Raises:
        RepositoryError: The release does not fit together.
        SetupError: This machine lacks something.
        ServerError: A process did not start, a model did not load, a probe failed.
    """
    record = state / f"{SLOTS_FOLDER}-{product}.json"
    plan: ServingPlan | None = None
    try:
        release = read_release(repository, product=product)
        plan = plan_serving(repository, release, config_name=model_config_name)
    except (RepositoryError, SpecError, PolicyError) as error:
        if not (recall and record.exists()):
            raise
        log.error("%s: %s; what was served before is served", product, error)
    with ExitStack() as stack:
        redis = None
        if store_url is None:
            redis = stack.enter_context(EmbeddedRedis(state))
            store_url = redis.url
        stack.enter_context(drained(state / SPOOL_FOLDER, store_url))
        slots = Slots(state / SLOTS_FOLDER)
        triton = stack.enter_context(
            TritonServer(
                slots.folder,
                state=state,
                store_url=store_url,
                journal_url=journal_url,
                grpc_port=grpc_port,
                metrics_port=metrics_port,
                model_config_name=model_config_name,
                host=host,
            )
        )
        serving = Serving(
            triton, slots, record=state / f"{SLOTS_FOLDER}-{product}.json"
        )
        answered = serving.begin(plan) if plan else serving.recall()
        log.info("%s: release %s is ready at %s", product, answered, triton.grpc_url)
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
            release=answered,
            triton=triton,
            serving=serving,
            redis=redis,
        )
