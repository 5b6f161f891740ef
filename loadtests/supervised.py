"""`tollgate up` as a process of its own, for those who hurt what it runs."""

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
from tollgate.server.address import find_server
from tollgate.supervisor.faults import read_faults
from tollgate.supervisor.stubs import find_stubs

# The package of that interpreter's environment, not of the folder that we are in.
_TOLLGATE = "import sys; sys.path.remove(''); from tollgate.cli import main; main()"
_PATIENCE_S = 600.0
_STOP_S = 600.0


class Supervised:
    """
    A supervised product.

    Args:
        repository: The model repository, a folder or an address.
        state: State folder; what it says goes to a file beside it.
        words: The command and its own options.
        python: The interpreter; another checkout's runs that checkout's code.
        limits: Words before the command, such as those of prlimit.
        environment: Of the process; that of this one unless given.
    """

    def __init__(
        self,
        repository: Path | str,
        state: Path,
        *,
        words: Sequence[str] = ("up",),
        python: Path | str = sys.executable,
        limits: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.state = state = state.absolute()
        if isinstance(repository, Path):
            repository = repository.absolute()
        self.said = state.with_suffix(".out")
        state.parent.mkdir(parents=True, exist_ok=True)
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [
                    *(*limits, str(python), "-c", _TOLLGATE, *words),
                    *("--repository", str(repository), "--state", str(state)),
                    *("--grpc-port", "0", "--metrics-port", "0", "--side-port", "0"),
                ],
                stdout=said,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=state.parent,  # steps import packages from the working folder
            )

    @property
    def grpc_url(self) -> str:
        """Where requests go; empty until it is told."""
        return self._told("grpc")

    @property
    def metrics_url(self) -> str:
        """Where Prometheus scrapes Triton."""
        return self._told("metrics")

    @property
    def health_url(self) -> str:
        """The side port; empty until it is told."""
        return self._told("health").removesuffix("/readyz")

    def _told(self, name: str) -> str:
        lines = [line.split() for line in self.said.read_text().splitlines()]
        return next((line[1] for line in lines if line[:1] == [name]), "")

    def get(self, path: str) -> tuple[int, str]:
        """Ask the side port: status and body; 0 when it does not answer."""
        try:
            with urllib.request.urlopen(self.health_url + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError, ValueError):
            return 0, ""

    def ready(self) -> bool:
        """Tell whether every product decides."""
        return self.get("/readyz")[0] == 200

    def wait(
        self, what: Callable[[], bool], *, patience_s: float = _PATIENCE_S
    ) -> None:
        """
        Wait until something holds.

        Raises:
            ServerError: It did not, or the supervisor ended; with what it said.
        """
        until = time.monotonic() + patience_s
        while not what():
            if self.process.poll() is not None or time.monotonic() > until:
                problem = "ended" if self.process.poll() is not None else "is late"
                raise ServerError("tollgate up", problem, log=self.said.read_text())
            time.sleep(0.05)

    def mended(self) -> list[str]:
        """Name what was mended so far."""
        found = read_faults(self.state)
        return [fault.part for fault in found if fault.mended_s is not None]

    def wait_mended(self, count: int, *, patience_s: float = _PATIENCE_S) -> None:
        """Wait until so many things were mended, and the product is ready."""
        self.wait(lambda: len(self.mended()) >= count, patience_s=patience_s)
        self.wait(self.ready, patience_s=patience_s)

    def pid(self, part: str) -> int:
        """
        Find the process of a part.

        Args:
            part: "tritonserver", "redis-server" or the name of a step.

        Raises:
            ServerError: None runs.
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
        """End it politely; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@contextlib.contextmanager
def supervised(repository: Path | str, *, state: Path) -> Iterator[Supervised]:
    """
    Run `tollgate up` until the context ends; ready at its beginning.

    Raises:
        ServerError: It did not become ready.
    """
    product = Supervised(repository, state)
    try:
        product.wait(lambda: bool(product.health_url) and product.ready())
        yield product
    finally:
        product.stop()
