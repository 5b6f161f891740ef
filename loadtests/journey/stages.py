"""Run the services, each with its own Redis that holds the same history."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from loadtests.baseline.clock import read_layers
from loadtests.baseline.filling import fill_naive, fill_phase1
from loadtests.baseline.serving import Service, served
from loadtests.baseline.trees import write_xgboost
from tollgate.errors import ServerError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History
from tollgate.load.store_contents import compact_store, fill_store, served_spec
from tollgate.repository.releases.release_file import read_release
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton import control

STAGES = ("naive", "phase1", "lean", "gathered", "tollgate")
BATCHED = ("lean", "gathered", "tollgate")  # stages that take several rows in a request

# Parts of the time of a request that every stage can report.
PARTS = ("store and features", "model", "policy and journal")
_STEPS = ("fraud_features", "fraud_model", "fraud_decision")
_COMPUTE = ("compute_input", "compute_infer", "compute_output")

Say = Callable[[str], None]  # gets a line for each slow operation


class Stage(msgspec.Struct, frozen=True):
    """
    A running service.

    Attributes:
        name: One of STAGES.
        url: "host:port"; gRPC for tollgate, HTTP/1.1 for the others.
        pids: Processes of the service; their descendants belong to it too.
        store_pid: Process of its Redis.
        store_url: URL of its Redis.
        spent: Reads its counters: requests, then ns in each of PARTS.
        require_alive: Raises ServerError when a process died.
    """

    name: str
    url: str
    pids: tuple[int, ...]
    store_pid: int
    store_url: str
    spent: Callable[[], tuple[int, ...]]
    require_alive: Callable[[], None]

    @property
    def grpc(self) -> bool:
        """Return whether it speaks gRPC."""
        return self.name == "tollgate"


@contextmanager
def run_stages(
    names: tuple[str, ...],
    history: History,
    *,
    repository: Path,
    folder: Path,
    say: Say,
) -> Iterator[Mapping[str, Stage]]:
    """
    Run stages until the context ends.

    Args:
        names: Names of the stages, of STAGES.
        history: History in their stores.
        repository: The model repository.
        folder: Folder for all their files.
        say: Called with each stage of progress.
    """
    spec = served_spec(repository)
    model = folder / "model.json"
    version = read_release(repository, product="fraud").versions["fraud_model"]
    write_xgboost(repository / "fraud_model" / str(version), model)
    known = _fill(spec, history, folder / "known", say=say)
    with ExitStack() as stack:
        stages = {}
        for name in names:
            say(f"starting {name}")
            state = folder / name
            state.mkdir()
            if name in BATCHED:
                # The socket of a long path is a link into its original folder.
                no_socket = shutil.ignore_patterns("redis.sock")
                shutil.copytree(known, state / "redis", ignore=no_socket)
            if name == "tollgate":
                server = stack.enter_context(serve(repository, state=state))
                stages[name] = _tollgate(server)
                continue
            redis = stack.enter_context(EmbeddedRedis(state))
            if name not in BATCHED:
                fill = fill_naive if name == "naive" else fill_phase1
                fill(history, redis.url)
                compact_store(redis.url)
            service = stack.enter_context(
                served(name, redis, repository=repository, model=model, folder=state)
            )
            stages[name] = _http(service, redis)
        yield stages


def _fill(spec: FeatureSpec, history: History, state: Path, *, say: Say) -> Path:
    """Fill a store in Tollgate's layout; return its folder, to be copied."""
    say(f"filling the stores with {len(history):,} purchases")
    with EmbeddedRedis(state) as redis:
        fill_store(spec, history, store_url=redis.url)
        compact_store(redis.url)
    return state / "redis"


def _http(service: Service, redis: EmbeddedRedis) -> Stage:
    def require_alive() -> None:
        for worker in service.workers:
            if not worker.alive():
                raise ServerError(worker.name, f"died: {worker.status()}")

    return Stage(
        name=service.name,
        url=service.url,
        pids=tuple(worker.pid for worker in service.workers),
        store_pid=redis.pid,
        store_url=redis.url,
        spent=partial(_read_counters, service.folder),
        require_alive=require_alive,
    )


def _read_counters(folder: Path) -> tuple[int, ...]:
    requests, store, features, model, policy = read_layers(folder)
    return requests, store + features, model, policy


def _tollgate(server: Embedded) -> Stage:
    def require_alive() -> None:
        if not server.triton.alive():
            raise ServerError(
                "tritonserver", "died under the load", log=server.triton.useful_log()
            )

    def spent() -> tuple[int, ...]:
        models = control.statistics(server.triton)
        statistics = [models[step]["inference_stats"] for step in _STEPS]
        ns = [
            sum(int(one[part].get("ns", 0)) for part in _COMPUTE) for one in statistics
        ]
        return int(statistics[0]["success"].get("count", 0)), *ns

    assert server.redis is not None  # `serve` was given no other store
    return Stage(
        name="tollgate",
        url=server.grpc_url,
        pids=(server.triton.pid,),
        store_pid=server.redis.pid,
        store_url=server.store_url,
        spent=spent,
        require_alive=require_alive,
    )
