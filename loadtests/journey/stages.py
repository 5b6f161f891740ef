"""Run the services, each with its own Redis that holds the same history."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import msgspec
import numpy as np
import numpy.typing as npt
from google.protobuf import text_format
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc.model_config_pb2 import ModelConfig

from loadtests.baseline.environment import (
    FOLDER_VARIABLE,
    MODEL_VARIABLE,
    REPOSITORY_VARIABLE,
    STORE_VARIABLE,
)
from loadtests.baseline.standalone.history import (
    ENTRY,
    KEPT_CUSTOMER_US,
    KEPT_TERMINAL_US,
    id_of,
)
from loadtests.baseline.trees import write_xgboost
from loadtests.paced.bench import stream_read
from loadtests.results.measure import work_of
from loadtests.results.surroundings import CHECKOUT
from tollgate.errors import ServerError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History
from tollgate.load.store_contents import compact_store, fill_store, served_spec
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.releases.release_file import read_release
from tollgate.repository.slo import Form
from tollgate.server.processes.child import Child
from tollgate.server.processes.environment import free_port
from tollgate.server.processes.listening_ports import listens
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import Embedded, serve

FORMS: dict[str, Form] = {"ensemble": "ensemble", "fused": "fused"}
STAGES = ("naive", "standalone", "lean", "gathered", *FORMS)
DOOR = "door"  # the fused form behind `tollgate door`; not among the default stages

Say = Callable[[str], None]  # gets a line for each slow operation


class Stage(msgspec.Struct, frozen=True):
    """
    A running service.

    Attributes:
        name: One of STAGES, or DOOR; "fused:250" is fused with a queue delay of 250 µs.
        url: "host:port"; gRPC for the forms of the product, HTTP/1.1 for the others.
        pids: Processes of the service; their descendants belong to it too.
        store_pid: Process of its Redis.
        store_url: URL of its Redis.
        batches: Reads the rows and the batches that it worked on; 0 where unknown.
        require_alive: Raises ServerError when a process died.
        batch_path: Path that takes several rows over HTTP.
        without_server: Reads the rows that the door answered without its server.
    """

    name: str
    url: str
    pids: tuple[int, ...]
    store_pid: int
    store_url: str
    batches: Callable[[], tuple[int, int]]
    require_alive: Callable[[], None]
    batch_path: str = "/decide/batch"
    without_server: Callable[[], int] = lambda: 0

    @property
    def grpc(self) -> bool:
        """Return whether it speaks gRPC: it is a form of the product."""
        return self.name.partition(":")[0] in FORMS


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
        names: Names of the stages, as in Stage.
        say: Called with each stage of progress.
    """
    spec = served_spec(repository)
    known = _filled_store(spec, history, folder / "known", say=say)
    with ExitStack() as stack:
        stages = {}
        for name in names:
            say(f"starting {name}")
            state = folder / name.replace(":", "-")
            state.mkdir()
            if name not in OWN_LAYOUT:
                # The socket of a long path is a link into its original folder.
                no_socket = shutil.ignore_patterns("redis.sock")
                shutil.copytree(known, state / "redis", ignore=no_socket)
            form, _, delay_us = name.partition(":")
            if form in FORMS or form == DOOR:
                served = repository
                if delay_us:
                    served = state / "models"
                    shutil.copytree(repository, served)
                    set_parameter(served / "fraud", "fused_queue_delay_us", delay_us)
                server = stack.enter_context(
                    serve(served, state=state, form=FORMS.get(form, "fused"))
                )
                stage = _form(name, server)
                if form == DOOR:
                    stage = stack.enter_context(
                        _serve_door(stage, repository=served, folder=state)
                    )
                stages[name] = stage
            else:
                redis = stack.enter_context(EmbeddedRedis(state))
                if name in OWN_LAYOUT:
                    OWN_LAYOUT[name](history, redis.url)
                    compact_store(redis.url)
                stages[name] = stack.enter_context(
                    _serve_service(name, redis, repository=repository, folder=state)
                )
            if name not in OWN_LAYOUT:
                read = stream_read(stages[name].store_url, product="fraud")
                stack.enter_context(read)
        yield stages


def set_parameter(model: Path, key: str, value: str) -> None:
    """Set a parameter in the configuration of a model, in a copy of a repository."""
    path = model / "config.pbtxt"
    config = text_format.Parse(path.read_text(), ModelConfig())
    config.parameters[key].string_value = value
    path.write_text(text_format.MessageToString(config))


def _filled_store(
    spec: FeatureSpec, history: History, state: Path, *, say: Say
) -> Path:
    """Fill a store in Tollgate's layout; return its folder, to be copied."""
    say(f"filling the stores with {len(history):,} purchases")
    with EmbeddedRedis(state) as redis:
        fill_store(spec, history, store_url=redis.url)
        compact_store(redis.url)
    return state / "redis"


def _form(name: str, server: Embedded) -> Stage:
    def require_alive() -> None:
        if not server.triton.alive():
            raise ServerError(
                "tritonserver", "died under the load", log=server.triton.useful_log()
            )

    def batches() -> tuple[int, int]:
        work = work_of(server)
        return work.purchases, work.feature_batches

    assert server.redis is not None  # `serve` was given no other store
    return Stage(
        name=name,
        url=server.grpc_url,
        pids=(server.triton.pid,),
        store_pid=server.redis.pid,
        store_url=server.store_url,
        batches=batches,
        require_alive=require_alive,
    )


_TOLLGATE = "import sys; sys.path.remove(''); from tollgate.cli import main; main()"
# Far beyond any answer: an answer by the fallback rule would cost the server nothing.
_DOOR_DEADLINE_MS = 10_000
_ROWS_METRIC = "tollgate_door_rows_total"


@contextmanager
def _serve_door(stage: Stage, *, repository: Path, folder: Path) -> Iterator[Stage]:
    """
    Serve `tollgate door` before a server until the context ends.

    Raises:
        ServerError: It does not start.
    """
    port, metrics_port = free_port(), free_port()
    log = folder / "door.log"
    command = [
        *(sys.executable, "-c", _TOLLGATE, "door"),
        *("--repository", str(repository), "--state", str(folder)),
        *("--url", stage.url, "--port", str(port), "--metrics-port", str(metrics_port)),
        *("--deadline-ms", str(_DOOR_DEADLINE_MS)),
    ]
    door = Child(command, name="door", env=dict(os.environ), log=log)

    def require_alive() -> None:
        stage.require_alive()
        if not door.alive():
            raise ServerError("door", f"died: {door.status()}")

    def without_server() -> int:
        url = f"http://127.0.0.1:{metrics_port}/metrics"
        with urlopen(url, timeout=_GRACE_S) as page:
            text = page.read().decode()
        return sum(
            int(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == _ROWS_METRIC and sample.labels["source"] != "model"
        )

    try:
        _wait_ready(door, f"http://127.0.0.1:{port}/v2/health/ready", log)
        yield msgspec.structs.replace(
            stage,
            url=f"127.0.0.1:{port}",
            pids=(*stage.pids, door.pid),
            require_alive=require_alive,
            batch_path="/decide",
            without_server=without_server,
        )
    finally:
        door.stop(grace_s=_GRACE_S)


def _wait_ready(child: Child, url: str, log: Path) -> None:
    """Wait until a page answers."""
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s and child.alive():
        with suppress(OSError), urlopen(url, timeout=1.0):
            return
        time.sleep(0.05)
    raise ServerError(child.name, "did not start", log=log.read_text()[-2000:])


_START_S = 60.0
_GRACE_S = 10.0


@contextmanager
def _serve_service(
    name: str, redis: EmbeddedRedis, *, repository: Path, folder: Path
) -> Iterator[Stage]:
    """
    Serve a service of the baseline until the context ends, with one worker or several.

    Raises:
        ServerError: It does not start.
    """
    port = free_port()
    number = read_release(repository, product="fraud").versions["fraud_model"]
    version = repository / "fraud_model" / str(number)
    model = version / MODEL_FILE
    if name == "naive":
        model = folder / "model.json"
        write_xgboost(version, model)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *sys.path]),
        STORE_VARIABLE: redis.url,
        FOLDER_VARIABLE: str(folder),
        MODEL_VARIABLE: str(model),
        REPOSITORY_VARIABLE: str(repository),
    }
    workers: list[Child] = []

    def require_alive() -> None:
        for worker in workers:
            if not worker.alive():
                raise ServerError(worker.name, f"died: {worker.status()}")

    log = folder / "service.log"
    app = f"loadtests.baseline.{name}.app:app"
    with ExitStack() as stack:
        for _ in range(1 if name == "naive" else len(os.sched_getaffinity(0))):
            worker = Child(
                [sys.executable, "-m", "loadtests.baseline.worker", app, str(port)],
                name=f"baseline {name}",
                env=environment,
                log=log,
            )
            stack.callback(worker.stop, grace_s=_GRACE_S)
            workers.append(worker)
        for worker in workers:
            _wait(worker, port, log)
        yield Stage(
            name=name,
            url=f"127.0.0.1:{port}",
            pids=tuple(worker.pid for worker in workers),
            store_pid=redis.pid,
            store_url=redis.url,
            batches=lambda: (0, 0),
            require_alive=require_alive,
        )


def _wait(worker: Child, port: int, log: Path) -> None:
    """Wait until a worker listens, which it does when its application is ready."""
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s and worker.alive():
        if listens(worker.pid, port):
            return
        time.sleep(0.02)
    raise ServerError(worker.name, "did not start", log=log.read_text()[-2000:])


# Put a history into the stores of the first two services, each in its own layout.


_AT_ONCE = 500  # keys in one round trip
_KEPT_US = {"customer": KEPT_CUSTOMER_US, "terminal": KEPT_TERMINAL_US}

Written = Callable[[npt.NDArray[np.int64]], list[bytes]]


def fill_naive(history: History, store_url: str) -> None:
    """Write JSON, as the `naive` service does."""
    ids = history.transaction_id

    def written(rows: npt.NDArray[np.int64]) -> list[bytes]:
        return [
            json.dumps(
                {
                    "id": ids[row].decode(),
                    "time": int(history.event_time_us[row]),
                    "amount": int(history.cents[row]) / 100,
                    "fraud": int(history.label[row] == 1),
                }
            ).encode()
            for row in rows.tolist()
        ]

    _write_history(history, store_url, written=written)


def fill_standalone(history: History, store_url: str) -> None:
    """Write packed entries, as the `standalone` service does."""
    entries = np.empty(len(history), ENTRY)
    entries["id"] = [id_of(one) for one in history.transaction_id]
    entries["time_us"] = history.event_time_us
    entries["cents"] = history.cents
    entries["fraud"] = history.label == 1

    def written(rows: npt.NDArray[np.int64]) -> list[bytes]:
        return [one.tobytes() for one in entries[rows]]

    _write_history(history, store_url, written=written)


def _write_history(history: History, store_url: str, *, written: Written) -> None:
    """Add every purchase to the sorted sets of its customer and of its terminal."""
    import redis

    with redis.Redis.from_url(store_url) as store:
        pipeline = store.pipeline(transaction=False)
        for number, (key, rows) in enumerate(_keys(history), start=1):
            times = history.event_time_us[rows].tolist()
            pipeline.zadd(key, dict(zip(written(rows), times, strict=True)))
            if number % _AT_ONCE == 0:
                pipeline.execute()
        pipeline.execute()


def _keys(history: History) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
    """Yield every key with the purchases that it holds."""
    end_us = int(history.event_time_us.max())
    for entity, kept_us in _KEPT_US.items():
        column = np.array(history.entity_id[f"{entity}_id"], np.bytes_)
        order = np.argsort(column, kind="stable")
        order = order[history.event_time_us[order] > end_us - kept_us]
        names, first = np.unique(column[order], return_index=True)
        for name, rows in zip(names, np.split(order, first[1:]), strict=True):
            yield f"{entity}:".encode() + bytes(name), rows


# The stages whose stores have a layout of their own; the others share Tollgate's.
OWN_LAYOUT = {"naive": fill_naive, "standalone": fill_standalone}
