"""
The supervisor: it owns what serves and puts right what breaks, by itself.

Several times a second it looks whether tritonserver, Redis and every Python step
live; once a second each product must decide a dry run. What died is started anew,
what hangs is killed first. What will not stay mended ends the supervisor, with the
reason: whoever started it knows better what to try next.
"""

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
from tollgate.supervisor.converging import Converger
from tollgate.supervisor.faults import Fault
from tollgate.supervisor.flapping import Flapping
from tollgate.supervisor.heartbeat import Heartbeat
from tollgate.supervisor.mending import Mender
from tollgate.supervisor.recycling import Recycling
from tollgate.supervisor.served import Served
from tollgate.supervisor.stubs import Step, Stub, find_stubs

log = logging.getLogger(__name__)

TICK_S = 0.1
# Failures of a product in a row after which a server that does not answer at all goes,
# then the product's steps, then a server that does.
_DEAF_AFTER, _STEPS_AFTER, _SERVER_AFTER = 2, 3, 6
_STOPPED_S = 0.5
_REDIS_AFTER = 3  # times that Redis did not answer within a second
_REDIS_EVERY_S = 1.0


class Supervisor:
    """
    Watches one server until told to stop.

    Args:
        served: What it owns.
        heartbeats: One per product, not yet started.
        convergers: Likewise; what keeps it at the release of its repository.
        recycling: When a step is started anew although it works.
        fault: Called with each thing that went wrong, once it is mended or not.
        flapping: When to give up.

    Attributes:
        draining: Whether it is about to stop: not ready, whatever the heartbeats say.
        ticked_s: When it last looked, on the monotonic clock.
        recycled: Steps started anew although they worked.
    """

    def __init__(
        self,
        served: Served,
        *,
        heartbeats: Sequence[Heartbeat],
        convergers: Sequence[Converger] = (),
        recycling: Recycling,
        fault: Callable[[Fault], None],
        flapping: Flapping | None = None,
    ) -> None:
        self.draining = False
        self.ticked_s = time.monotonic()
        self.recycled = 0
        self._served = served
        self.heartbeats = tuple(heartbeats)
        self.convergers = tuple(convergers)
        self._recycling = recycling
        self._mender = Mender(
            self.heartbeats, fault=fault, flapping=flapping or Flapping()
        )
        self._known = {stub.step: stub for stub in find_stubs(served.triton.pid)}
        self._stopped_s: dict[int, float] = {}
        self._redis_silent = 0
        self._redis_asked_s = 0.0
        self._recycled_s = time.monotonic()

    @property
    def ready(self) -> bool:
        """Whether every product decides, and none of it is about to stop."""
        return not self.draining and all(beat.ready for beat in self.heartbeats)

    @property
    def stubs(self) -> list[Stub]:
        """The steps' processes, as last seen."""
        return list(self._known.values())

    def run(self, wait: Callable[[float], bool]) -> None:
        """
        Watch until the wait says to stop.

        Args:
            wait: Waits so many seconds; True when it is time to stop.

        Raises:
            ServerError: Something would not stay mended.
        """
        for beat in self.heartbeats:
            beat.start()
        for converger in self.convergers:
            converger.start()
        try:
            while not wait(TICK_S):
                self.tick()
        finally:
            self.draining = True
            for converger in self.convergers:
                converger.stop()
            for beat in self.heartbeats:
                beat.stop()

    def tick(self) -> None:
        """Look once, and mend what is found."""
        self.ticked_s = time.monotonic()
        self._watch_redis()
        if not self._served.triton.alive():
            self._restart_triton("ended")
            return
        stubs = self._watch_stubs()
        self._watch_stopped(stubs)
        for beat in self.heartbeats:
            if beat.failures >= _DEAF_AFTER:
                self._watch_product(beat, stubs)
        if self.ready:
            self._recycle(stubs)

    def _watch_redis(self) -> None:
        redis = self._served.redis
        if redis is None:
            return
        if not redis.alive():
            self._mender.mend("redis-server", "ended", redis.restart)
            return
        if self.ticked_s - self._redis_asked_s < _REDIS_EVERY_S:
            return
        self._redis_asked_s = self.ticked_s
        self._redis_silent = 0 if redis.answers() else self._redis_silent + 1
        if self._redis_silent >= _REDIS_AFTER:
            self._redis_silent = 0
            self._mender.mend("redis-server", "does not answer", redis.restart)

    def _restart_triton(self, what: str) -> None:
        self._known = {}
        self._mender.mend("tritonserver", what, self._served.restart_triton)

    def _watch_stubs(self) -> list[Stub]:
        """Heal the models of which a stub is gone that should be there."""
        stubs = find_stubs(self._served.triton.pid)
        living = {stub.step: stub for stub in stubs}
        gone = [step for step in self._known if step not in living]
        self._known = living | {step: self._known[step] for step in gone}
        dead: set[str] = set()
        for step in gone:
            wanted = self._wanted(step)
            if wanted is False:
                del self._known[step]  # somebody unloaded it
            elif wanted:
                dead.add(step.model)
        for model in sorted(dead):
            self._mender.mend(model, "a step died", partial(self._renew, model))
        return stubs

    def _wanted(self, step: Step) -> bool | None:
        """Ask whether a version is meant to be loaded; None when nobody answers."""
        try:
            versions = control.ready_versions(
                self._served.triton, step.model, timeout_s=1.0
            )
        except ServerError:
            return None
        return step.version in versions

    def _renew(self, model: str) -> None:
        try:
            self._served.serving.renew(model)
        except ServerError as error:
            log.warning("%s: %s; the server is started anew", model, error)
            self._known = {}
            self._served.restart_triton()

    def _watch_stopped(self, stubs: Sequence[Stub]) -> None:
        """Kill what a signal stopped; the next look finds it dead."""
        stopped = [stub for stub in stubs if stub.stopped]
        self._stopped_s = {
            stub.pid: self._stopped_s.get(stub.pid, self.ticked_s) for stub in stopped
        }
        late_s = self.ticked_s - _STOPPED_S
        self._kill([stub for stub in stopped if self._stopped_s[stub.pid] <= late_s])

    def _watch_product(self, beat: Heartbeat, stubs: Sequence[Stub]) -> None:
        """Start anew what keeps a product from deciding: its steps, then the server."""
        if not control.is_live(self._served.triton):
            self._restart_triton("does not answer")
        elif beat.failures < _STEPS_AFTER or self._overloaded(beat):
            return
        elif beat.failures == _STEPS_AFTER:
            self._renew_steps(beat, stubs)
            beat.failures = _STEPS_AFTER + 1
        elif beat.failures >= _SERVER_AFTER:
            self._restart_triton(f"{beat.product} does not decide: {beat.problem}")

    def _renew_steps(self, beat: Heartbeat, stubs: Sequence[Stub]) -> None:
        """Start all steps of a product anew, dead ones that nobody missed too."""
        log.warning("%s: its steps are started anew: %s", beat.product, beat.problem)
        steps = self._served.steps()
        self._kill([stub for stub in stubs if stub.step.model in steps])
        for model in steps:
            what = f"{beat.product} does not decide"
            self._mender.mend(model, what, partial(self._renew, model))

    def _overloaded(self, beat: Heartbeat) -> bool:
        if not beat.others_answered():
            return False
        log.warning("%s answers others, but no probe in time", beat.product)
        beat.failures = 1
        return True

    def _kill(self, stubs: Sequence[Stub]) -> None:
        for stub in stubs:
            log.warning("%s: process %d is killed", stub.step.model, stub.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(stub.pid, signal.SIGKILL)

    def _recycle(self, stubs: Sequence[Stub]) -> None:
        if self.ticked_s - self._recycled_s < self._recycling.apart_s:
            return
        due = self._recycling.due(stubs)
        if due is None:
            return
        stub, why = due
        log.info("%s %s: started anew", stub.step.model, why)
        try:
            self._served.serving.renew(stub.step.model)
        except ServerError as error:
            log.warning("%s was not started anew: %s", stub.step.model, error)
        else:
            self.recycled += 1
        self._recycled_s = time.monotonic()
