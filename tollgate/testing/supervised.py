"""Run `tollgate up` as a separate process, for tests that damage what it runs."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tollgate.errors import ServerError
from tollgate.server.address import Address, find_server
from tollgate.supervisor.fault_log import read_faults
from tollgate.supervisor.stubs import find_stubs

# Use the package of that interpreter's environment, not that of the working folder.
_TOLLGATE = "import sys; sys.path.remove(''); from tollgate.cli import main; main()"
_PATIENCE_S = 600.0
_STOP_S = 600.0


class Supervised:
    """
    A product under its supervisor, as a child process.

    Args:
        repository: The model repository, a folder or an address.
        state: State folder; its output goes to a file next to it.
        words: The command and its own options.
        python: The interpreter; another checkout's runs that checkout's code.
        environment: Environment of the process; that of this one unless given.
    """

    def __init__(
        self,
        repository: Path | str,
        state: Path,
        *,
        words: Sequence[str] = ("up",),
        python: Path | str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.state = state = state.absolute()
        if isinstance(repository, Path):
            repository = repository.absolute()
        self.output = state.with_suffix(".out")
        state.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(str(python), "-c", _TOLLGATE, *words),
                    *(f"--repository={repository}", f"--state={state}"),
                    *("--grpc-port=0", "--metrics-port=0", "--side-port=0"),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=state.parent,  # steps import packages from the working folder
            )

    @property
    def grpc_url(self) -> str:
        """Return the address for requests; empty until it is printed."""
        return self._printed_value("grpc")

    @property
    def metrics_url(self) -> str:
        """Return the address where Prometheus scrapes Triton."""
        return self._printed_value("metrics")

    @property
    def health_url(self) -> str:
        """Return the address of the admin port; empty until it is printed."""
        return self._printed_value("health").removesuffix("/readyz")

    @property
    def address(self) -> Address:
        """
        Return the address of the server.

        Raises:
            ServerError: It has not started, or ended.
        """
        address = find_server(self.state)
        if address is None:
            raise ServerError("tollgate up", "runs no server")
        return address

    def _printed_value(self, name: str) -> str:
        lines = [line.split() for line in self.output.read_text().splitlines()]
        return next((line[1] for line in lines if line[:1] == [name]), "")

    def get(self, path: str) -> tuple[int, str]:
        """Get a page of the admin port: status and body; 0 when it does not answer."""
        try:
            with urllib.request.urlopen(self.health_url + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError, ValueError):
            return 0, ""

    def ready(self) -> bool:
        """Return whether every product decides."""
        return self.get("/readyz")[0] == 200

    def wait(
        self, what: Callable[[], bool], *, patience_s: float = _PATIENCE_S
    ) -> None:
        """
        Wait until a condition holds.

        Raises:
            ServerError: It did not hold in time, or the supervisor ended; includes its
                output.
        """
        until = time.monotonic() + patience_s
        while not what():
            if self.process.poll() is not None or time.monotonic() > until:
                problem = "ended" if self.process.poll() is not None else "is late"
                raise ServerError("tollgate up", problem, log=self.output.read_text())
            time.sleep(0.05)

    def recovered_parts(self) -> list[str]:
        """List the parts that were recovered so far."""
        found = read_faults(self.state)
        return [fault.part for fault in found if fault.mended_s is not None]

    def wait_recovered(self, count: int, *, patience_s: float = _PATIENCE_S) -> None:
        """Wait until so many parts were recovered, and the product is ready."""
        self.wait(lambda: len(self.recovered_parts()) >= count, patience_s=patience_s)
        self.wait(self.ready, patience_s=patience_s)

    def pid(self, part: str) -> int:
        """
        Find the process of a part.

        Args:
            part: "tritonserver", "redis-server" or the name of a step.

        Raises:
            ServerError: No such process runs.
        """
        address = find_server(self.state)
        server = address.pid if address else 0
        if part == "tritonserver" and server:
            return server
        if part == "redis-server":
            return self._redis_pid()
        for stub in find_stubs(server):
            if stub.step.model == part:
                return stub.pid
        raise ServerError(part, "does not run")

    def _redis_pid(self) -> int:
        folder = f"{self.state.resolve()}/redis".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"redis-server") and folder in words:
                    return int(process.name)
        raise ServerError("redis-server", "does not run")

    def stop(self) -> int:
        """Stop it with SIGTERM, or SIGKILL after a while; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@contextlib.contextmanager
def supervised(
    repository: Path | str, *, state: Path, words: Sequence[str] = ("up",)
) -> Iterator[Supervised]:
    """
    Run `tollgate up` until the context ends; ready at its beginning.

    Args:
        words: The command and its own options.

    Raises:
        ServerError: It did not become ready.
    """
    product = Supervised(repository, state, words=words)
    try:
        product.wait(lambda: bool(product.health_url) and product.ready())
        yield product
    finally:
        product.stop()
