"""Supervise one product in its own thread, in parallel with the server's others."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

from tollgate.errors import ServerError
from tollgate.server import control
from tollgate.server.launcher import TritonServer
from tollgate.supervisor.mending import Mender
from tollgate.supervisor.stubs import Step, Stub, is_meant
from tollgate.supervisor.watched import Watched
from tollgate.worker import Worker

log = logging.getLogger(__name__)

# Consecutive failures of a product after which to restart: a server that does not
# answer at all, then the product's steps, then a server that does answer.
_DEAF_AFTER, _STEPS_AFTER, _SERVER_AFTER = 2, 3, 6
_STOPPED_S = 0.5

Restart = Callable[[str], None]


class Keeper:
    """
    Supervise one product in its own thread, so that a hanging action delays no other.

    Args:
        one: The product.
        others: The other products of the server.
        triton: The server.
        mender: Repairs parts and logs faults.
        restart: Restarts the server, for the reason given.
    """

    def __init__(
        self,
        one: Watched,
        *,
        others: Sequence[Watched],
        triton: TritonServer,
        mender: Mender,
        restart: Restart,
    ) -> None:
        self.one = one
        self._others = others
        self._triton = triton
        self._mender = mender
        self._restart = restart
        self._known: dict[Step, Stub] = {}
        self._stopped_s: dict[int, float] = {}
        self._doing: Callable[[], None] | None = None
        self._given_up: ServerError | None = None
        self._worker = Worker(f"keep-{one.name}", self._do, pause_s=None)

    def begin(self, action: Callable[[], None]) -> bool:
        """
        Start an action for the product, unless one is in progress.

        Returns:
            True if the action was started.

        Raises:
            ServerError: The last action gave up.
        """
        if not self._is_free():
            return False
        self._doing = action
        self._worker.start()
        self._worker.wake()
        return True

    def _do(self) -> None:
        """Run the pending action; the worker handles errors other than ServerError."""
        if self._doing is None:
            return
        try:
            self._doing()
        except ServerError as error:
            self._given_up = error
        finally:
            self._doing = None

    def _is_free(self) -> bool:
        """Return whether no action is in progress; raise the last action's error."""
        if self._given_up is not None:
            raise self._given_up
        return self._doing is None

    def misses(self, stubs: Sequence[Stub]) -> bool:
        """Return whether a step that was seen before is missing from the list."""
        return bool(self._known.keys() - {stub.step for stub in stubs})

    def is_due(self, stubs: Sequence[Stub]) -> bool:
        """
        Return whether a look would find anything that the last one did not.

        Args:
            stubs: All living steps of the server.

        Raises:
            ServerError: The last action gave up.
        """
        if not self._is_free():
            return False
        try:
            return self._differs(stubs) or self.one.failures >= _DEAF_AFTER
        except Exception:  # noqa: BLE001 - the look meets it, and its worker counts it
            return True

    def _differs(self, stubs: Sequence[Stub]) -> bool:
        steps = self.one.serving.steps
        own = {stub.step: stub for stub in stubs if stub.step.model in steps}
        known = self._known
        return (
            own.keys() != known.keys()
            or any(own[step].pid != known[step].pid for step in own)
            or any(stub.stopped for stub in own.values())
        )

    def stop(self) -> None:
        """Start no more actions; an action in progress ends with its server."""
        self._worker.stop(0)

    def look(self, stubs: Sequence[Stub]) -> None:
        """
        Look once, and repair the faults that it finds.

        Args:
            stubs: All living steps of the server.

        Raises:
            ServerError: A part keeps failing after repairs.
        """
        steps = self.one.serving.steps
        own = [stub for stub in stubs if stub.step.model in steps]
        self._watch_stubs(own)
        self._watch_stopped(own)
        if self.one.failures >= _DEAF_AFTER:
            self._watch_probes(own)

    def _watch_stubs(self, stubs: Sequence[Stub]) -> None:
        """Reload the models that miss a stub."""
        living = {stub.step: stub for stub in stubs}
        gone = [step for step in self._known if step not in living]
        self._known = living | {step: self._known[step] for step in gone}
        dead: set[str] = set()
        for step in gone:
            wanted = self._wanted(step)
            if wanted is False:
                del self._known[step]  # the instance was removed on purpose
            elif wanted:
                dead.add(step.model)
        for model in sorted(dead):
            self._renew(model, "a step died")

    def _wanted(self, step: Step) -> bool | None:
        """Return whether an instance is configured to run; None if unknown."""
        try:
            versions = control.ready_versions(self._triton, step.model, timeout_s=1.0)
            if step.version not in versions:
                return False
            return is_meant(step, control.model_config(self._triton, step.model))
        except ServerError:
            return None

    def _renew(self, model: str, what: str) -> None:
        action = partial(self.one.serving.renew, model)
        went = self._mender.mend(model, what, action, product=self.one.name)
        if not went and not self._others_serve():
            self._known = {}
            self._restart(f"{model} could not be started anew")

    def _others_serve(self) -> bool:
        """
        Return whether another product decides, for the probe or for its callers.

        A product that was repaired a moment ago counts: its next probe shows whether it
        decides.
        """
        return any(
            other.loaded and (not other.failures or other.others_answered())
            for other in self._others
        )

    def _watch_stopped(self, stubs: Sequence[Stub]) -> None:
        """Kill processes that a signal stopped; the next look finds them dead."""
        now_s = time.monotonic()
        self._stopped_s = {
            stub.pid: self._stopped_s.get(stub.pid, now_s)
            for stub in stubs
            if stub.stopped
        }
        late_s = now_s - _STOPPED_S
        self._kill(
            [stub for stub in stubs if self._stopped_s.get(stub.pid, now_s) <= late_s]
        )

    def _watch_probes(self, stubs: Sequence[Stub]) -> None:
        """Restart the steps of a product that does not decide, then the server."""
        one, beat = self.one, self.one.heartbeat
        if self._others_serve():
            overdue = beat.failures >= _STEPS_AFTER
            if overdue and not self._overloaded() and one.may_renew():
                self._renew_steps(stubs)
        elif not control.is_live(self._triton):
            self._restart("does not answer")
        elif beat.failures < _STEPS_AFTER or self._overloaded():
            return
        elif beat.failures == _STEPS_AFTER:
            self._renew_steps(stubs)
            beat.failures = _STEPS_AFTER + 1
        elif beat.failures >= _SERVER_AFTER:
            self._restart(f"{one.name} does not decide: {beat.problem}")

    def _renew_steps(self, stubs: Sequence[Stub]) -> None:
        """Restart all steps of the product, also dead ones that no look found."""
        name, problem = self.one.name, self.one.heartbeat.problem
        log.warning("%s: its steps are started anew: %s", name, problem)
        self._kill(stubs)
        for model in self.one.serving.steps:
            self._renew(model, f"{name} does not decide")

    def _overloaded(self) -> bool:
        if not self.one.others_answered():
            return False
        log.warning("%s answers others, but no probe in time", self.one.name)
        self.one.heartbeat.failures = 1
        return True

    def _kill(self, stubs: Sequence[Stub]) -> None:
        for stub in stubs:
            log.warning("%s: process %d is killed", stub.step.model, stub.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(stub.pid, signal.SIGKILL)
