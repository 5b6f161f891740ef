"""
Load a product's release into a server, and switch to another while it answers.

    widen   load the new parts next to those that serve
    try     an ensemble of them under another name decides dry runs of 1, 8 and 32 rows
    switch  reload the product's ensemble: the new parts answer
    narrow  unload what neither this release nor the one before it needs

The server answers requests all the while. A failure before the switch leaves the old
release as it was; after a later failure, the server switches back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from tollgate.errors import ServerError
from tollgate.repository.atomic import lock_folder, replace_file
from tollgate.repository.releases.serving_plan import Part, ServingPlan
from tollgate.repository.slo import Form
from tollgate.server.serving.copy_slots import Slots
from tollgate.server.serving.fused_form import FusedLoading
from tollgate.server.serving.loaded import (
    Canary,
    LoadedRelease,
    ServingRecord,
    loaded_slots,
    make_record,
    read_record,
    require_shape,
)
from tollgate.server.serving.loading import (
    TRIAL_SUFFIX,
    Loading,
    probe_whole,
    require_release,
)
from tollgate.server.triton import control
from tollgate.server.triton.launcher import TritonServer

log = logging.getLogger(__name__)


def loading_in(form: Form, triton: TritonServer) -> Loading:
    """Return the object that loads a product in a form."""
    return FusedLoading(triton) if form == "fused" else Loading(triton)


class Serving:
    """
    One product on one running server, next to other products.

    Args:
        triton: The server; it reads the slots and has loaded nothing of the product.
        slots: Its copies, shared with the other products.
        form: Form in which the product is served.

    Attributes:
        form: The same, or the form of the release that `recall` loaded.
    """

    def __init__(
        self,
        triton: TritonServer,
        slots: Slots,
        *,
        record: Path,
        form: Form = "ensemble",
    ) -> None:
        self._triton = triton
        self._slots = slots
        self._path = record
        self._now: ServingRecord | None = None
        self.form = form
        self._loading = loading_in(form, triton)

    @property
    def active(self) -> LoadedRelease | None:
        """The release that answers; None before the first is loaded."""
        return self._now.active if self._now else None

    @property
    def release(self) -> str:
        """Name of the release that answers; empty before the first is loaded."""
        return self._now.active.release if self._now else ""

    @property
    def steps(self) -> tuple[str, ...]:
        """The models that do the product's work, in the order of the data flow."""
        if self._now is None:
            return ()
        if self._now.form == "fused":
            return (self._now.product,)
        return tuple(self._now.active.slots)

    def begin(self, plan: ServingPlan) -> str:
        """
        Load the product's first release; return the release that its answer names.

        Raises:
            RepositoryError: A file does not match its hash in the release.
            ServerError: A part did not load, or the product does not answer.
        """
        with self._alone(plan.product):
            record = make_record(plan, self._place(plan, loaded={}), previous=None)
            answered = self._load_first(record)
            self._write_record(record)
        return answered

    def recall(self) -> str:
        """
        Load what an earlier server of this folder served; return its release.

        Raises:
            RepositoryError: A step of it is another product's.
            ServerError: There is no record, or a copy is not complete or does not load.
        """
        record = read_record(self._path)
        self.form = "fused" if record.form == "fused" else "ensemble"
        self._loading = loading_in(self.form, self._triton)
        for step, slots in loaded_slots(record).items():
            self._slots.claim(step, product=record.product)
            for slot in slots:
                self._slots.require_whole(step, slot)
        answered = self._load_first(record)
        self._now = record
        return answered

    def again(self) -> str:
        """
        Load what was loaded, after the server was restarted.

        Raises:
            ServerError: Nothing was loaded, or it does not load any more.
        """
        if self._now is None:
            raise ServerError("tritonserver", "nothing was loaded before")
        return self._load_all(self._now)

    def switch(self, plan: ServingPlan, *, progress: Callable[[str], None]) -> None:
        """
        Switch from the release that answers to another one, without an interruption.

        Raises:
            RepositoryError: A file does not match its hash in the release.
            ServerError: The new release does not load or does not answer, and the old
                one goes on; or the server cannot be reached.
        """
        old = self._require()
        require_shape(old, plan)
        with self._alone(plan.product):
            self._switch(plan, old, progress=progress)

    def _switch(
        self, plan: ServingPlan, old: ServingRecord, *, progress: Callable[[str], None]
    ) -> None:
        progress("copying")
        previous = (
            old.previous if old.active.release == plan.release.name else old.active
        )
        new = make_record(
            plan, self._place(plan, loaded=loaded_slots(old)), previous=previous
        )
        progress("loading")
        try:
            for step, slots in loaded_slots(new).items():
                self._loading.step(new, step, {*loaded_slots(old)[step], *slots})
            self._try(new)
            progress("switching")
            self._switch_ensemble(new, back_to=old)
            self._loading.refusals(new)
        except BaseException:
            self._restore(old)
            raise
        finally:
            self._loading.drop(new.product + TRIAL_SUFFIX)
        recorded = self._write_record(new)
        progress("narrowing")
        self._narrow(new)
        if not recorded:  # the unloaded slots may have freed disk space
            self._write_record(new)

    def renew(self, step: str) -> None:
        """
        Restart all slots of a step; the old ones answer until the new ones do.

        Raises:
            ServerError: Triton refused, or does not answer.
        """
        record = self._require()
        self._loading.renew(record, step)
        whole = all(control.ready_versions(self._triton, one) for one in self.steps)
        if whole and not control.is_ready(self._triton, record.product):
            # Loading a step that was not loaded does not bring its ensemble back.
            self._loading.ensemble(record, name=record.product, loaded=record.active)

    def _alone(self, product: str) -> AbstractContextManager[None]:
        """Lock the product's slots against other writers: `publish`."""
        self._slots.add_ensemble(product)
        return lock_folder(self._slots.folder / product)

    def _require(self) -> ServingRecord:
        if self._now is None:
            raise ServerError("tritonserver", "has no release loaded")
        return self._now

    def _place(
        self, plan: ServingPlan, *, loaded: Mapping[str, Iterable[int]]
    ) -> LoadedRelease:
        """Copy the files that a plan needs."""

        def place(part: Part) -> int:
            keep = {*loaded.get(part.step, ()), *taken.get(part.step, ())}
            return self._slots.place(part, repository=plan.repository, loaded=keep)

        taken: dict[str, list[int]] = {}
        for step in plan.parts:
            self._slots.claim(step, product=plan.product)
        self._slots.add_ensemble(plan.product)
        slots = {step: place(part) for step, part in plan.parts.items()}
        canary, challenger = None, plan.release.challenger
        if plan.canary is not None and challenger is not None:
            step = plan.canary.step
            taken[step] = [slots[step]]
            canary = Canary(step, place(plan.canary), challenger)
        return LoadedRelease(
            release=plan.release.name,
            versions=dict(plan.release.versions),
            slots=slots,
            canary=canary,
        )

    def _load_first(self, record: ServingRecord) -> str:
        """Load a record completely, or nothing of it."""
        try:
            return self._load_all(record)
        except BaseException:
            for name in (record.product, *loaded_slots(record)):
                self._loading.drop(name)
            raise

    def _load_all(self, record: ServingRecord) -> str:
        for step, slots in loaded_slots(record).items():
            self._loading.step(record, step, slots)
        self._loading.ensemble(record, name=record.product, loaded=record.active)
        release = probe_whole(self._triton, record.product)
        self._loading.refusals(record)
        return release

    def _try(self, new: ServingRecord) -> None:
        """Let an ensemble of the new parts decide, before any caller depends on it."""
        name = new.product + TRIAL_SUFFIX
        self._slots.add_ensemble(name)
        self._loading.ensemble(new, name=name, loaded=new.active)
        require_release(self._triton, name, new.active)

    def _switch_ensemble(self, new: ServingRecord, *, back_to: ServingRecord) -> None:
        self._loading.ensemble(new, name=new.product, loaded=new.active)
        try:
            require_release(self._triton, new.product, new.active)
        except ServerError:
            self._loading.ensemble(back_to, name=new.product, loaded=back_to.active)
            raise

    def _restore(self, old: ServingRecord) -> None:
        """Unload what was loaded next to the old release, which goes on serving."""
        for step, slots in loaded_slots(old).items():
            try:
                self._loading.step(old, step, slots)
            except ServerError as error:
                log.warning(
                    "%s keeps the versions of the new release loaded: %s", step, error
                )

    def _narrow(self, record: ServingRecord) -> None:
        for step, slots in loaded_slots(record).items():
            try:
                self._loading.step(record, step, slots)
            except ServerError as error:
                log.warning("%s keeps what is not needed any more: %s", step, error)
            else:
                self._slots.sweep(step, keep=slots)

    def _write_record(self, record: ServingRecord) -> bool:
        """Record what answers, also on disk; a full disk does not stop serving."""
        self._now = record
        encoded = msgspec.json.format(msgspec.json.encode(record), indent=2)
        try:
            replace_file(self._path, encoded + b"\n")
        except OSError as error:
            text = "%s cannot be written: %s; a new start may serve what was before"
            log.error(text, self._path, error.strerror)
            return False
        return True
