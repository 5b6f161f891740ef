"""Tests of the real tritonserver: control, batching, draining, death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tollgate.errors import RepositoryError, ServerError, SetupError
from tollgate.server.processes.environment import SHM, free_port
from tollgate.server.triton import control, launcher
from tollgate.server.triton.launcher import TritonServer, region_prefix

pytestmark = pytest.mark.slow

Load = Callable[[str], None]


def _infer(server: TritonServer, name: str, x: object) -> np.ndarray:
    answer = control.infer(
        server,
        name,
        inputs={"x": np.asarray(x, np.float32)},
        parameters={},
        timeout_s=30,
    )
    return next(iter(answer.values()))


def test_it_loads_nothing_by_itself(server: TritonServer) -> None:
    """A repository full of models is left alone until somebody loads one."""
    assert server.alive()
    assert not control.is_ready(server, "surroundings")


def test_a_model_is_loaded_and_unloaded(server: TritonServer, load: Load) -> None:
    """Ready after the load, gone after the unload."""
    load("accelerated")
    assert control.is_ready(server, "accelerated")
    control.unload_model(server, "accelerated")
    assert not control.is_ready(server, "accelerated")


def test_concurrent_requests_run_as_one_batch(server: TritonServer, load: Load) -> None:
    """Eight requests of four rows are one execution, each with its own answer."""
    load("patient")
    questions = [np.full((4, 2), n, np.float32) for n in range(8)]
    answers: dict[int, np.ndarray] = {}

    def ask(n: int) -> None:
        answers[n] = _infer(server, "patient", questions[n])

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, question in enumerate(questions):
        np.testing.assert_array_equal(answers[n], question * 2)
    counters = control.statistics(server, "patient")["patient"]
    assert (counters["inference_count"], counters["execution_count"]) == ("32", "1")


def test_a_corrupt_model_fails_with_its_name(server: TritonServer, load: Load) -> None:
    """One line that names the file; the server and its other models stay."""
    load("echo")
    with pytest.raises(ServerError) as caught:
        load("corrupt")
    assert "corrupt/1/model.onnx: onnxruntime 1.19.2 cannot load it" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(_infer(server, "echo", [[1, 2]]), [[1, 2]])


def test_a_gpu_instance_runs_on_the_cpu_in_words(
    server: TritonServer, load: Load
) -> None:
    """The log says that KIND_GPU was asked for and what happens instead."""
    load("accelerated")
    np.testing.assert_array_equal(_infer(server, "accelerated", [[3, 4]]), [[6, 8]])
    log = server.log.read_text()
    assert "asks for KIND_GPU, but this build of the backend has no GPU support" in log
    assert "intra_op_thread_count 1; " in log


def test_steps_run_in_the_environment_that_started_them(
    server: TritonServer, load: Load
) -> None:
    """Same Python to the patch, same packages, single-threaded; no bytecode written."""
    load("surroundings")
    told = _infer(server, "surroundings", [[0]])
    version = ".".join(str(part) for part in sys.version_info[:3])
    expected = [version, np.__file__, "unix:///nowhere", "1", "True"]
    assert [text.decode() for text in told[0]] == expected


def test_loading_needs_the_secret(server: TritonServer) -> None:
    """Whoever may load a model runs code here: closed without the header."""
    for headers in ({}, {"triton-grpc-protocol-admin": "guessed"}):
        stranger = control.Endpoint(server.grpc_url, headers)
        with pytest.raises(ServerError, match="the control API is closed"):
            control.load_model(stranger, "echo", config=None)


@pytest.mark.parametrize(
    "call",
    [
        "get_system_shared_memory_status",
        "get_cuda_shared_memory_status",
        "get_model_repository_index",
        "get_trace_settings",
        "get_log_settings",
    ],
)
def test_dangerous_protocols_need_the_secret(server: TritonServer, call: str) -> None:
    """Shared memory, repository, trace and logging answer only with the header."""
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    client = InferenceServerClient(server.grpc_url)
    with pytest.raises(InferenceServerException, match="restricted"):
        getattr(client, call)()
    getattr(client, call)(headers=server.admin_headers)
    client.close()


def test_metrics_are_served_and_http_inference_is_not(
    server: TritonServer, load: Load
) -> None:
    """The metrics port has Triton's counters and nothing else."""
    load("echo")
    root = server.metrics_url.removesuffix("metrics")
    with urllib.request.urlopen(server.metrics_url) as answer:
        assert b"nv_inference_request_success" in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{root}v2/models/echo")


def test_an_unknown_model_is_one_line(server: TritonServer) -> None:
    """Triton's refusal names the model."""
    with pytest.raises(ServerError, match="failed to load 'nothing'"):
        control.load_model(server, "nothing", config=None)


def test_a_state_folder_serves_one_server(
    server: TritonServer, repository: Path
) -> None:
    """A second server on the same folder is refused; the first lives on."""
    state = server.log.parent.parent
    with pytest.raises(SetupError, match="in use by process"):
        TritonServer(repository, state=state, store_url="").__enter__()
    assert server.alive()


def test_a_taken_port_is_one_sentence(
    server: TritonServer, repository: Path, tmp_path: Path
) -> None:
    """The port of another server is refused before anything is started."""
    taken = TritonServer(
        repository, state=tmp_path, store_url="", grpc_port=server.grpc_port
    )
    with pytest.raises(SetupError, match=f"gRPC port {server.grpc_port} on 127.0.0.1"):
        taken.__enter__()


def test_a_port_lost_in_a_race_is_replaced(
    server: TritonServer,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A port that was free a moment ago is no failure when any port will do."""
    ports = [server.grpc_port, free_port()]
    ports += [free_port(), server.metrics_port]
    ports += [free_port(), free_port()]
    monkeypatch.setattr(launcher, "free_port", lambda _: ports.pop(0))
    with TritonServer(repository, state=tmp_path, store_url="") as second:
        assert second.alive()
        assert second.metrics_port != server.metrics_port
        assert not ports


def test_a_missing_repository_is_named(tmp_path: Path) -> None:
    """No folder, no server."""
    absent = tmp_path / "absent"
    with pytest.raises(RepositoryError, match="absent: no such model repository"):
        TritonServer(absent, state=tmp_path, store_url="").__enter__()


def test_nobody_there_is_one_line() -> None:
    """A server that is gone is called that, by its address."""
    url = f"127.0.0.1:{free_port()}"
    with pytest.raises(ServerError, match=f"no server answers at {url}"):
        control.load_model(control.Endpoint(url), "echo", config=None)
    assert not control.is_ready(control.Endpoint(url), "echo")


def test_stopping_lets_requests_in_flight_end(
    repository: Path, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    """A request that is being worked on when SIGTERM comes is answered."""
    answers = []
    with TritonServer(repository, state=tmp_path, store_url=str(tmp_path)) as server:
        control.load_model(server, "echo", config=None)
        asked = threading.Thread(
            target=lambda: answers.append(_infer(server, "echo", [[-1, 2]]))
        )
        asked.start()
        wait_until((tmp_path / "started").exists)
        server.stop()
        asked.join()
    np.testing.assert_array_equal(answers[0], [[-1, 2]])
    assert not server.alive()


def test_a_killed_server_leaves_nothing(
    repository: Path,
    tmp_path: Path,
    gone: Callable[[int], bool],
    children: Callable[[int], list[int]],
) -> None:
    """After SIGKILL its stubs and its shared memory go when the context ends."""
    with TritonServer(repository, state=tmp_path, store_url="") as server:
        control.load_model(server, "echo", config=None)
        stubs = children(server.pid)
        assert stubs
        assert list(SHM.glob(f"{region_prefix(tmp_path)}*"))
        os.kill(server.pid, signal.SIGKILL)
    assert all(map(gone, stubs))
    assert not list(SHM.glob(f"{region_prefix(tmp_path)}*"))


def test_a_killed_parent_leaves_nothing(
    repository: Path,
    tmp_path: Path,
    gone: Callable[[int], bool],
    children: Callable[[int], list[int]],
    wait_until: Callable[..., None],
) -> None:
    """After SIGKILL to us, Triton, its stubs, Redis and the shared memory go."""
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tollgate.server.triton import control\n"
        "from tollgate.server.triton.launcher import TritonServer\n"
        "from tollgate.server.processes.redis_server import EmbeddedRedis\n"
        "state = Path(sys.argv[2])\n"
        "with EmbeddedRedis(state) as redis, TritonServer(\n"
        "    Path(sys.argv[1]), state=state, store_url=redis.url\n"
        ") as triton:\n"
        "    control.load_model(triton, 'echo', config=None)\n"
        "    print(redis.pid, triton.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(repository), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    redis_pid, triton_pid = map(int, parent.stdout.readline().split())
    stubs = children(triton_pid)
    assert stubs
    parent.kill()
    parent.communicate()
    wait_until(lambda: gone(redis_pid))
    wait_until(lambda: gone(triton_pid))
    wait_until(lambda: all(map(gone, stubs)))
    wait_until(lambda: not list(SHM.glob(f"{region_prefix(tmp_path)}*")))
    with TritonServer(repository, state=tmp_path, store_url="") as server:
        assert server.alive()
