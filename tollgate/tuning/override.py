"""
Try settings on a running server, and always restore the original ones.

Triton loads a step with other settings by load-with-override; no file is touched. The
original settings come from the server's record of the configurations that it loaded,
not from the running ones: so another process can restore them too, when this process
was killed.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import ServerError
from tollgate.repository.atomic import lock_folder
from tollgate.repository.configs import to_json
from tollgate.repository.serving_form import QUEUE_DELAY_PARAMETER
from tollgate.server.address import Address
from tollgate.server.processes.state_lock import FolderLock
from tollgate.server.serving.loaded import loaded_slots, read_record
from tollgate.server.serving.loading import Loading, generation_of
from tollgate.server.triton import control
from tollgate.server.triton.probe import ask_once
from tollgate.supervisor.stubs import find_stubs
from tollgate.tuning.settings import THREADS, Roles
from tollgate.tuning.space import Candidate

_DECIDES_S = 10.0
_SETTLE_S = 10.0
_PARAMETERS = (THREADS,)
_TRIES, _AGAIN_S = 5, 1.0  # to put back
_LOCK = "tune.lock"  # in the state folder: two tunings would undo each other's work


class Override:
    """
    The settings of one product on a server of this machine, until the context ends.

    The server's supervisor keeps running: if it activates a release or restarts a step
    while settings are tried, it replaces them. Both are noticed.

    Args:
        record: File in which the server records the configurations that it loaded.

    Attributes:
        configs: Configuration of each step, from the record.
        base: The settings in them.
        release: Release that the server serves.
        left: Steps that ran with other settings when the context began, because the
            process that tried them was killed. They were restored.
    """

    def __init__(self, server: Address, *, record: Path, roles: Roles) -> None:
        self._server = server
        self._path = record
        self._record = read_record(record)
        if self._record.form == "fused":
            problem = "is served fused; tuning searches the settings of an ensemble. "
            problem += f"Set {QUEUE_DELAY_PARAMETER} in its config.pbtxt instead, or "
            raise ServerError(self._record.product, problem + "serve the ensemble")
        self._roles = roles
        self._loading = Loading(server)
        self.configs = {
            step: json_format.Parse(text, ModelConfig())
            for step, text in self._record.configs.items()
        }
        self.base = roles.read(self.configs)
        self.release = self._record.active.release
        self.left: Sequence[str] = ()
        self._tried: set[str] = set()  # steps that may run with other settings
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Override:
        with contextlib.ExitStack() as stack:
            lock = FolderLock(self._path.parent, name=_LOCK, patience_s=0.0)
            stack.callback(lock.release)
            with self._turn():
                self.left = [
                    step
                    for step, config in self._running().items()
                    if _differs(config, self.configs[step])
                ]
            self._tried.update(self.left)
            self._put_back()
            self._stack = stack.pop_all()
        return self

    def apply(self, candidate: Candidate) -> None:
        """
        Run the server with settings.

        Raises:
            ServerError: It refused them, or the product does not decide with them, or
                activated another release meanwhile.
        """
        with self._turn():
            wanted = self._roles.written(self.configs, candidate)
            self._load(wanted, anyway=frozenset())
        self._require_decisions()
        self._settle()

    def holds(self, candidate: Candidate) -> bool:
        """Return whether the server still runs with settings."""
        return self._roles.read(self._running()) == candidate

    def _load(self, wanted: dict[str, ModelConfig], *, anyway: Collection[str]) -> None:
        """Load the steps whose running configuration differs, and those in `anyway`."""
        configs = {step: to_json(config) for step, config in wanted.items()}
        record = msgspec.structs.replace(self._record, configs=configs)
        for step, slots in loaded_slots(self._record).items():
            running = control.model_config(self._server, step)
            if not _differs(_parsed(running), wanted[step]) and step not in anyway:
                continue
            self._tried.add(step)
            # Without a new generation Triton only adds or removes instances, and a
            # removed one looks dead while the old count is still reported.
            generation = generation_of(running) + 1
            self._loading.step(record, step, slots, generation=generation)

    def _running(self) -> dict[str, ModelConfig]:
        return {
            step: _parsed(control.model_config(self._server, step))
            for step in self.configs
        }

    def _require_decisions(self) -> None:
        until_s = time.monotonic() + _DECIDES_S
        while True:
            try:
                ask_once(self._server, self._record.product, timeout_s=1.0)
                return
            except ServerError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.1)

    def _settle(self) -> None:
        """Wait until replaced instances have ended: they use processor time, too."""
        slots = loaded_slots(self._record)
        most = sum(
            len(slots[step]) * max(1, group.count)
            for step, config in self._running().items()
            for group in config.instance_group
        )
        until_s = time.monotonic() + _SETTLE_S
        while time.monotonic() < until_s:
            stubs = find_stubs(self._server.pid)
            if sum(stub.step.model in slots for stub in stubs) <= most:
                return
            time.sleep(0.05)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Lock the product, and check that it still serves the same release."""
        with lock_folder(self._server.own_repository / self._record.product):
            now = read_record(self._path)
            if now != self._record:
                self._tried.clear()  # the activation loaded its own configuration
                problem = f"went to release {now.active.release} meanwhile"
                raise ServerError(
                    self._record.product, f"{problem}; run `tollgate tune` again"
                )
            yield

    def _put_back(self) -> None:
        """Load the recorded configurations, with retries."""
        for left in reversed(range(_TRIES)):
            if not self._tried:
                return
            try:
                with self._turn():
                    # If a load was cut off, the tried settings may still take effect.
                    self._load(self.configs, anyway={*self._tried})
                self._require_decisions()
                if not self.holds(self.base):
                    raise ServerError(self._record.product, "was changed meanwhile")
                self._tried.clear()
            except ServerError as error:
                if not self._tried:
                    return
                if not left:
                    steps = ", ".join(sorted(self._tried))
                    problem = f"{steps} may run with settings that were only tried"
                    raise ServerError(
                        self._record.product,
                        f"{problem}: {error}; restart the server, or run "
                        "`tollgate tune --restore`",
                    ) from error
                time.sleep(_AGAIN_S)

    def __exit__(self, *_: object) -> None:
        with self._stack, _undisturbed():
            self._put_back()


def _parsed(running: dict[str, object]) -> ModelConfig:
    config: ModelConfig = json_format.ParseDict(running, ModelConfig())
    return config


def _differs(running: ModelConfig, wanted: ModelConfig) -> bool:
    """Compare the fields that settings consist of; Triton fills in others."""
    return _words(running) != _words(wanted)


def _words(config: ModelConfig) -> tuple[object, ...]:
    batching = config.dynamic_batching
    # Triton reports max_batch_size where none is preferred.
    preferred = {*batching.preferred_batch_size} - {config.max_batch_size}
    return (
        batching.max_queue_delay_microseconds,
        tuple(sorted(preferred)),
        tuple(max(1, group.count) for group in config.instance_group),
        tuple(
            sorted(
                (key, one.string_value)
                for key, one in config.parameters.items()
                if key in _PARAMETERS
            )
        ),
    )


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM in the block, so that it completes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
