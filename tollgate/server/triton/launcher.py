"""Run the real tritonserver, from an image or from the wheel, as a child process."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError, ServerError, SetupError
from tollgate.schema import ARRIVED_HEADER, CONTEXT_KEY_VARIABLE
from tollgate.server.processes.child import Child
from tollgate.server.processes.environment import (
    SHM,
    Wheel,
    find_libpython,
    find_wheel,
    free_port,
    libpython_name,
    require_platform,
    require_port,
)
from tollgate.server.processes.listening_ports import listens
from tollgate.server.processes.resources import Resources, measure
from tollgate.server.processes.server_log import useful_lines
from tollgate.server.processes.state_lock import FolderLock, make_private_folder
from tollgate.server.triton import control
from tollgate.server.triton.metrics_page import PATH as METRICS_PATH
from tollgate.server.triton.metrics_page import MetricsPage
from tollgate.server.triton.placement import has_gpu
from tollgate.server.triton.private_names import draw_suffix, unlink_private
from tollgate.server.triton.step_python import build_step_python, server_environment
from tollgate.tracing import BATCHES_FILE, BATCHES_VARIABLE, TRACE_FOLDER
from tollgate.tracing.collecting import SpanCollector
from tollgate.tracing.context import TRACEPARENT

# Build a Triton backend directory: the wheel's layout with the right Python stub.
#
# Triton looks for the stub next to libtriton_python.so, where the wheel has none, and
# loads `onnxruntime/model.py` as a backend written in Python. Files are copied, not
# linked, for three measured reasons: the server refuses a library whose real path lies
# outside the backend directory, it changes the stub's mode to 0100, and the binaries
# find their libraries by a path relative to their own location, so the copy repeats the
# wheel's layout around links to those libraries.
#
# One of them is not the wheel's: its stub for Python 3.13 looks there for libpython,
# and would find its builder's. Builds of Python differ in which modules are in
# libpython and which are files, so the stub gets the running interpreter's.

_OURS = Path(__file__).parents[1] / "backends"


def build_backend_directory(state: Path, *, wheel: Wheel) -> Path:
    """
    Create or update the backend directory below a state folder.

    Args:
        state: The state folder; only `state/server` is touched.

    Returns:
        The value for --backend-directory.
    """
    root = state.resolve() / "server"
    backends = root / "pytriton" / "tritonserver" / "backends"
    for name in ("python", "onnxruntime"):
        (backends / name).mkdir(parents=True, exist_ok=True)
    _link_libraries(root / wheel.libraries.name, wheel=wheel)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        _copy(wheel.python_backend / name, backends / "python" / name)
    _copy(wheel.stub, backends / "python" / wheel.stub.name)
    _copy(_OURS / "onnxruntime" / "model.py", backends / "onnxruntime" / "model.py")
    return backends


def _link_libraries(folder: Path, *, wheel: Wheel) -> None:
    if folder.is_symlink():  # releases before Python 3.13 linked the folder
        folder.unlink()
    folder.mkdir(exist_ok=True)
    for library in wheel.libraries.iterdir():
        if library.name != wheel.libpython:
            _link(library, folder / library.name)
    if wheel.libpython:
        _link(find_libpython() / libpython_name(), folder / wheel.libpython)


def _link(source: Path, target: Path) -> None:
    if target.is_symlink() and Path(os.readlink(target)) == source:
        return
    target.unlink(missing_ok=True)
    target.symlink_to(source)


def _copy(source: Path, target: Path) -> None:
    """Copy by rename, so that a server running on the old file keeps it."""
    wanted = source.stat()
    if target.exists():
        present = target.stat()
        same = (present.st_size, present.st_mtime_ns) == (
            wanted.st_size,
            wanted.st_mtime_ns,
        )
        if same:
            return
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(source, draft)
    draft.replace(target)


# Use the Triton that an image installs, such as NVIDIA's, instead of the wheel's.
#
# Its backends are used in place: the stub lies next to the library there, and
# `onnxruntime` is the backend written in C++. Nothing is copied or written, so the
# folder may belong to another user and be read-only.

INSTALLED = Path("/opt/tritonserver")  # the folder in NVIDIA's images
_LINKED = re.compile(rb"libpython(\d+\.\d+)\.so")


class Installed(msgspec.Struct, frozen=True):
    """Locations of the files of an installed Triton."""

    tritonserver: Path
    backends: Path  # value for --backend-directory
    caches: Path  # value for --cache-directory
    gpu: bool  # whether there is a GPU that it can use


def find_installed(root: Path = INSTALLED) -> Installed | None:
    """
    Locate an installed Triton that fits the running Python; None if there is none.

    Raises:
        SetupError: It lacks a backend that every product needs, or its Python steps run
            another Python than this one.
    """
    tritonserver, backends = root / "bin" / "tritonserver", root / "backends"
    if not tritonserver.is_file():
        return None
    stub = backends / "python" / "triton_python_backend_stub"
    for path in (stub, backends / "onnxruntime"):
        if not path.exists():
            raise SetupError(
                f"the Triton in {root} has no {path.relative_to(root)}",
                remedy="take an image with the backends python and onnxruntime, such "
                "as NVIDIA's tritonserver:26.07-py3",
            )
    _require_python(stub)
    return Installed(tritonserver, backends, root / "caches", gpu=has_gpu())


def _require_python(stub: Path) -> None:
    """Fail if a stub would find none of this Python's packages."""
    try:
        linked = _LINKED.search(stub.read_bytes())
    except PermissionError:  # Triton removes the right to read from its own stub
        return
    here = ".".join(platform.python_version_tuple()[:2])
    if linked is not None and linked[1].decode() != here:
        version = linked[1].decode()
        raise SetupError(
            f"{stub} runs Python {version}, this is {here} ({sys.executable})",
            remedy=f"install Tollgate into an environment of Python {version}",
        )


ADMIN_HEADER = "triton-grpc-protocol-admin"
# A caller who may load a model runs code as this user; shared-memory registration has
# published vulnerabilities in this release; configurations and statistics name the
# steps, which callers must not reach; the others write files. Health, metadata and
# inference stay open.
RESTRICTED = "model-repository,model-config,shared-memory,statistics,trace,logging"
_LOOPBACK = "127.0.0.1"
SPOOL_FOLDER = "spool"  # in the state folder: purchases that the store missed
JOURNAL_SPOOL_FOLDER = "journal-spool"  # spool of records that the stream missed
DRAIN_S = 10  # requests in flight end long before that: the SLA is 50 ms
_NO_GPU = ["--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"]
_START_S = 60.0
_STUBS_S = 0.2  # seconds for the steps of a dead server to write a spool's last lines
_PORT_TRIES = 3  # a port found free can be taken before Triton listens on it


class TritonServer:
    """
    Run a tritonserver as long as this context; it starts with no model loaded.

    Args:
        state: State folder; the log is `logs/triton.log`.
        store_url: Address that the steps receive in TOLLGATE_STORE_URL.
        journal_url: Address of the stream for decisions: None for the store, empty for
            none.
        grpc_port: TCP port; 0 takes a free one.
        metrics_port: TCP port of Prometheus metrics; 0 takes a free one.
        host: Address of both. Any address but loopback opens an unpatched server.
        model_config_name: Named configuration that a model is loaded with if the call
            contains none.
        cache_mb: Memory for Triton's response cache, MB; 0: none. It caches for models
            with `response_cache { enable: true }`.
        allocator: Library that the server and its steps allocate with; see
            tollgate.server.processes.allocator.
        products: Number of products that will be loaded; they share /dev/shm.
        spans: Receiver of the spans that steps write of traced requests; None: they
            write none.
        installed: Folder of an installed Triton to use; if it does not exist, the
            wheel's is used.

    Attributes:
        limits: Limits of this machine at the start; None before.
        private_suffix: Suffix of the private names of this start.
        admin_headers: Headers that a call to a restricted protocol must carry. Triton
            takes the secret on its command line only, so users of this machine see it.
    """

    def __init__(
        self,
        repository: Path,
        *,
        state: Path,
        store_url: str,
        journal_url: str | None = None,
        grpc_port: int = 0,
        metrics_port: int = 0,
        host: str = "127.0.0.1",
        model_config_name: str = "",
        cache_mb: int = 0,
        allocator: str = "",
        products: int = 1,
        spans: SpanCollector | None = None,
        installed: Path = INSTALLED,
    ) -> None:
        self._repository = repository.resolve()
        self._state = state.resolve()
        self._store_url = store_url
        self.journal_url = store_url if journal_url is None else journal_url
        self._wanted_ports = (grpc_port, metrics_port)
        self._host = host
        self._model_config_name = model_config_name
        self._cache_bytes = cache_mb * 1_000_000
        self._allocator = allocator
        self._spans = spans
        self._products = products
        self.limits: Resources | None = None
        self._installed = installed
        self._stack = contextlib.ExitStack()
        self._child: Child | None = None
        self._begin: Callable[[], None] | None = None
        self._log_offset = 0
        self.log = self._state / "logs" / "triton.log"
        self._secret = secrets.token_hex(24)
        self.private_suffix = ""
        self.grpc_port, self.metrics_port = self._wanted_ports
        self._triton_metrics_port = 0

    @property
    def pid(self) -> int:
        """Its process id; 0 when it is not running."""
        return self._child.pid if self._child else 0

    @property
    def grpc_url(self) -> str:
        """Address for inference requests, "host:port"."""
        return f"{bracketed(self._host)}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """Address that Prometheus scrapes."""
        return f"http://{bracketed(self._host)}:{self.metrics_port}{METRICS_PATH}"

    @property
    def admin_headers(self) -> dict[str, str]:
        """The gRPC metadata that opens the restricted protocols."""
        return {ADMIN_HEADER: self._secret}

    @property
    def own_repository(self) -> Path:
        """The model repository that it reads."""
        return self._repository

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._child is not None and self._child.alive()

    def useful_log(self) -> str:
        """Return the log lines since this start that explain why it failed."""
        return useful_lines(self.log, offset=self._log_offset)

    def __enter__(self) -> TritonServer:
        triton = self._require_machine()
        with contextlib.ExitStack() as stack:
            lock = FolderLock(self._state, name="triton.lock")
            stack.callback(lock.release)
            remove_regions(self._state)
            self.limits = measure()
            self.limits.require(self._products)
            make_private_folder(self.log.parent)
            (self._state / TRACE_FOLDER).mkdir(exist_ok=True)
            page = self._open_metrics_page()
            stack.callback(page.close)
            self.metrics_port = page.port
            self._begin = partial(self._start, self._laid_out(triton), lock=lock)
            for left in reversed(range(_PORT_TRIES)):
                try:
                    self._begin()
                    break
                except ServerError as error:
                    if not left or "already in use" not in error.log:
                        raise
            self._stack = stack.pop_all()
        return self

    def _open_metrics_page(self) -> MetricsPage:
        try:
            return MetricsPage(
                self._host,
                self._wanted_ports[1],
                triton_port=lambda: self._triton_metrics_port,
            )
        except OSError as error:
            place = f"{bracketed(self._host)}:{self._wanted_ports[1]}"
            raise SetupError(
                f"{place} cannot be listened on: {error.strerror}",
                remedy="choose another port for the metrics page",
            ) from error

    def _require_machine(self) -> Wheel | Installed:
        if not self._repository.is_dir():
            raise RepositoryError(self._repository, "no such model repository")
        for port, purpose in zip(self._wanted_ports, ("gRPC", "metrics"), strict=True):
            if port:
                require_port(port, self._host, purpose=purpose)
        installed = find_installed(self._installed)
        if installed is not None:
            return installed
        require_platform()
        return find_wheel()

    def _laid_out(self, triton: Wheel | Installed) -> Installed:
        if isinstance(triton, Installed):
            return triton
        backends = build_backend_directory(self._state, wheel=triton)
        return Installed(triton.tritonserver, backends, triton.caches, gpu=False)

    def _start(self, triton: Installed, *, lock: FolderLock) -> None:
        self.grpc_port = self._wanted_ports[0] or free_port(self._host)
        self._triton_metrics_port = free_port(_LOOPBACK)
        unlink_private(self._repository)
        self.private_suffix = draw_suffix()
        self._log_offset = self.log.stat().st_size if self.log.exists() else 0
        self._child = Child(
            [
                *(str(triton.tritonserver), *self._options(triton)),
                *([] if triton.gpu else _NO_GPU),
            ],
            name="tritonserver",
            env=server_environment(
                store_url=self._store_url,
                binaries=build_step_python(self._state / "server"),
                allocator=self._allocator,
            )
            | {
                CONTEXT_KEY_VARIABLE: secrets.token_hex(32),
                "TOLLGATE_SPOOL": str(self._state / SPOOL_FOLDER),
                "TOLLGATE_JOURNAL_URL": self.journal_url,
                "TOLLGATE_JOURNAL_SPOOL": str(self._state / JOURNAL_SPOOL_FOLDER),
                BATCHES_VARIABLE: str(self._state / TRACE_FOLDER / BATCHES_FILE),
            }
            | (dict(self._spans.environment) if self._spans else {}),
            log=self.log,
            keep_fds=(lock.fd,),
        )
        try:
            self.wait_live(_START_S)
        except BaseException:
            self._end(grace_s=2.0)
            raise

    def _options(self, triton: Installed) -> list[str]:
        # Triton refuses the option without a value.
        name = self._model_config_name
        named = [f"--model-config-name={name}"] if name else []
        if self._cache_bytes:
            named.append(f"--cache-directory={triton.caches}")
            named.append(f"--cache-config=local,size={self._cache_bytes}")
        # Headers of a call that its steps see as parameters of the request: the time
        # when it arrived at the gateway, and the trace that it belongs to.
        headers = [ARRIVED_HEADER, *([TRACEPARENT] if self._spans else [])]
        named.append(f"--grpc-header-forward-pattern={'|'.join(headers)}")
        if self.limits is not None:
            region = self.limits.region_bytes(self._products)
            named.append(f"--backend-config=python,shm-default-byte-size={region}")
        return [
            *named,
            f"--model-repository={self._repository}",
            "--model-control-mode=explicit",
            f"--backend-directory={triton.backends}",
            # Every config.pbtxt is complete; completing it would start each step
            # twice and costs 1.1 s per model.
            "--disable-auto-complete-config",
            f"--backend-config=python,shm-region-prefix-name={region_prefix(self._state)}",
            "--allow-http=false",
            f"--grpc-address={bracketed(self._host)}",
            f"--grpc-port={self.grpc_port}",
            f"--grpc-restricted-protocol={RESTRICTED}:admin={self._secret}",
            f"--metrics-address={_LOOPBACK}",
            f"--metrics-port={self._triton_metrics_port}",
            f"--exit-timeout-secs={DRAIN_S}",
            "--log-verbose=0",
        ]

    def wait_live(self, timeout_s: float) -> None:
        """
        Wait until the server answers.

        Raises:
            ServerError: It ended, or did not answer in time; with its last log lines.
        """
        until = time.monotonic() + timeout_s
        while self._child is not None and not self._answers():
            if not self.alive() or time.monotonic() > until:
                raise ServerError(
                    "tritonserver",
                    f"{self._child.status()} before it answered; its log is {self.log}",
                    log=self.useful_log(),
                )
            time.sleep(0.01)

    def _answers(self) -> bool:
        # A port that was free may now be another server's, which answers too.
        ports = (self.grpc_port, self._triton_metrics_port)
        ours = all(listens(self.pid, port) for port in ports)
        return ours and control.is_live(self)

    def restart(self) -> None:
        """
        Restart at the same ports, in place of a process that died or hangs.

        The old process is killed without grace; the new one starts with no model
        loaded.

        Raises:
            ServerError: It did not answer in time.
        """
        if self._begin is None:
            raise ServerError("tritonserver", "was never started here")
        self._end(grace_s=0.0, group_grace_s=_STUBS_S)
        self._wanted_ports = self.grpc_port, self.metrics_port
        self._begin()

    def stop(self) -> None:
        """Let requests in flight end, then stop; a second call does nothing."""
        self._end(grace_s=DRAIN_S + 20.0)
        self._stack.close()

    def _end(self, *, grace_s: float, group_grace_s: float = 5.0) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.stop(grace_s=grace_s, group_grace_s=group_grace_s)
            remove_regions(self._state)

    def __exit__(self, *_: object) -> None:
        self.stop()


def bracketed(host: str) -> str:
    """Write an address so that a port can follow it."""
    return f"[{host}]" if ":" in host else host


# Name and remove the shared memory of Triton and its Python steps.


def region_prefix(state: Path) -> str:
    """Return the name prefix of a state folder's shared-memory regions."""
    numbers = state.stat()
    text = f"{numbers.st_dev}:{numbers.st_ino}:{state}"
    return f"tollgate_{hashlib.sha256(text.encode()).hexdigest()[:12]}_"


def remove_regions(state: Path, *, shm: Path = SHM) -> None:
    """Remove the shared memory that a killed server of this folder left behind."""
    for region in shm.glob(f"{region_prefix(state)}*"):
        region.unlink(missing_ok=True)
