"""A real tritonserver over a small repository of our own, shared by these tests."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.server.doubling_model import doubling_onnx
from tollgate.server.triton import control, placement
from tollgate.server.triton.launcher import TritonServer

# TOLLGATE_STORE_URL is a free-form text to the launcher: here a folder.
ECHO = """
    import os, time
    import triton_python_backend_utils as pb

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                x = pb.get_input_tensor_by_name(request, "x").as_numpy()
                if x[0, 0] < 0:  # the sign asks for a slow answer
                    open(os.environ["TOLLGATE_STORE_URL"] + "/started", "w").close()
                    time.sleep(1.5)
                answers.append(pb.InferenceResponse([pb.Tensor("y", x)]))
            return answers
"""
SURROUNDINGS = """
    import os, platform, sys
    import numpy as np
    import triton_python_backend_utils as pb

    class TritonPythonModel:
        def execute(self, requests):
            told = [platform.python_version(), np.__file__]
            told += [os.environ[name] for name in ("TOLLGATE_STORE_URL",
                     "OMP_NUM_THREADS")]
            told.append(str(sys.dont_write_bytecode))
            row = np.array([[text.encode() for text in told]], dtype=object)
            return [pb.InferenceResponse([pb.Tensor("told", row)]) for _ in requests]
"""
# Answers as a product does; the parameter `fault` makes row 1 of a request bad.
TOY = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb

    class TritonPythonModel:
        def initialize(self, args):
            parameters = json.loads(args["model_config"])["parameters"]
            self.fault = parameters.get("fault", {}).get("string_value", "")

        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            assert json.loads(request.parameters())["dry_run"] is True
            amount = pb.get_input_tensor_by_name(request, "amount").as_numpy()
            text = lambda value: np.full(amount.shape, value, dtype=object)
            error = text(b"")
            error[1:2] = self.fault.encode()
            return pb.InferenceResponse([
                pb.Tensor("decision", text(b"approve")),
                pb.Tensor("score", np.zeros(amount.shape, np.float32)),
                pb.Tensor("reason_codes", text(b"")),
                pb.Tensor("degraded", np.full(amount.shape, 5, np.uint32)),
                pb.Tensor("error", error),
                pb.Tensor("release", text(b"toy-7")),
            ])
"""
TOY_CONFIG = """
    backend: "python"
    max_batch_size: 32
    input [
      { name: "transaction_id" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "amount" data_type: TYPE_FP64 dims: [ 1 ] },
      { name: "event_time" data_type: TYPE_INT64 dims: [ 1 ] },
      { name: "channel" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    ]
    output [
      { name: "decision" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "score" data_type: TYPE_FP32 dims: [ 1 ] },
      { name: "reason_codes" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "degraded" data_type: TYPE_UINT32 dims: [ 1 ] },
      { name: "error" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "release" data_type: TYPE_STRING dims: [ 1 ] }
    ]
    instance_group [ { count: 1 kind: KIND_CPU } ]
"""
PAIR_CONFIG = """
    backend: "%s"
    max_batch_size: 32
    input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
    instance_group [ { count: 1 kind: KIND_%s } ]
    %s
"""
TOLD_CONFIG = """
    backend: "python"
    max_batch_size: 32
    input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
    output [ { name: "told" data_type: TYPE_STRING dims: [ 5 ] } ]
    instance_group [ { count: 1 kind: KIND_CPU } ]
"""
# Holds requests back until 32 rows have come, so that a batch is not left to chance.
PATIENT = """
    dynamic_batching { max_queue_delay_microseconds: 10000000 }
    parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""
ONE_THREAD = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'


def _write_model(
    repository: Path, name: str, *, config: str, files: dict[str, str | bytes]
) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(textwrap.dedent(config))
    for file, content in files.items():
        if isinstance(content, str):
            content = textwrap.dedent(content).encode()
        (version / file).write_bytes(content)


def _wait_until(condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def _gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with small models of every kind these tests need."""
    root = tmp_path_factory.mktemp("repository")
    python = ("python", "CPU", "")
    _write_model(root, "echo", config=PAIR_CONFIG % python, files={"model.py": ECHO})
    _write_model(
        root, "surroundings", config=TOLD_CONFIG, files={"model.py": SURROUNDINGS}
    )
    _write_model(root, "toy", config=TOY_CONFIG, files={"model.py": TOY})
    fault = 'parameters { key: "fault" value { string_value: "amount: -1: negative" } }'
    _write_model(root, "faulty", config=TOY_CONFIG + fault, files={"model.py": TOY})
    onnx = {"model.onnx": doubling_onnx()}
    patient = ("onnxruntime", "CPU", PATIENT)
    _write_model(root, "patient", config=PAIR_CONFIG % patient, files=onnx)
    accelerated = ("onnxruntime", "GPU", ONE_THREAD)
    _write_model(root, "accelerated", config=PAIR_CONFIG % accelerated, files=onnx)
    junk = {"model.onnx": b"this is no model"}
    plain = ("onnxruntime", "CPU", ONE_THREAD)
    _write_model(root, "corrupt", config=PAIR_CONFIG % plain, files=junk)
    return root


@pytest.fixture(scope="session")
def server(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """A running tritonserver that has loaded nothing."""
    state = tmp_path_factory.mktemp("state")
    with TritonServer(repository, state=state, store_url="unix:///nowhere") as running:
        yield running


def _config_json(repository: Path, name: str) -> str:
    from google.protobuf import json_format, text_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    text = (repository / name / "config.pbtxt").read_text()
    config = text_format.Parse(text, ModelConfig())
    config.name = name
    text = json_format.MessageToJson(config, preserving_proto_field_name=True)
    return str(text)


@pytest.fixture(scope="session")
def config_json(repository: Path) -> Callable[[str], str]:
    """Read a model's configuration as the JSON that Triton loads."""
    return lambda name: _config_json(repository, name)


@pytest.fixture(scope="session")
def load(
    server: TritonServer, config_json: Callable[[str], str]
) -> Callable[[str], None]:
    """Load a model the way `serve` does: by configuration, placed on this machine."""
    return lambda name: control.load_model(
        server, name, config=placement.placed(config_json(name), gpu=False)
    )


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """Poll until something holds; fail when it never does."""
    return _wait_until


@pytest.fixture(scope="session")
def gone() -> Callable[[int], bool]:
    """Tell whether a process has ended, reaped or not."""
    return _gone


@pytest.fixture(scope="session")
def children() -> Callable[[int], list[int]]:
    """List the direct children of a process."""
    return _children


@pytest.fixture(scope="session")
def doubling() -> bytes:
    """y = 2 x over float32 [N, 2] as ONNX; the sum of each row is a second output."""
    return doubling_onnx()
