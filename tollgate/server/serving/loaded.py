"""Record the releases, slots and canary that a server has loaded of each product."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import msgspec

from tollgate.errors import ServerError
from tollgate.repository.configs import to_json
from tollgate.repository.releases.release_file import Challenger
from tollgate.repository.releases.serving_plan import ServingPlan

SLOTS_FOLDER = "served"  # in the state folder: the copies that the server reads
# Fields that may not change while both releases are loaded: they share a configuration.
_SHAPE = ("platform", "backend", "max_batch_size", "input", "output")


class Canary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A challenger's model next to the release's, and the customers it answers."""

    step: str
    slot: int
    challenger: Challenger


class LoadedRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A release as a server has it loaded, with the model of a challenger on canary."""

    release: str
    versions: dict[str, int]
    slots: dict[str, int]
    canary: Canary | None = None


class ServingRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    All that is loaded, stored next to the copies: enough to load it again.

    Attributes:
        configs: Configuration per step, as JSON, without a version policy.
        ensemble: Configuration of the ensemble, as JSON, without pins.
        form: Form in which it is served; absent for an ensemble.
    """

    product: str
    active: LoadedRelease
    previous: LoadedRelease | None = msgspec.field(name="kept")
    configs: dict[str, str]
    ensemble: str
    form: Literal["fused"] | msgspec.UnsetType = msgspec.UNSET


def make_record(
    plan: ServingPlan, active: LoadedRelease, *, previous: LoadedRelease | None
) -> ServingRecord:
    return ServingRecord(
        product=plan.product,
        active=active,
        previous=previous,
        configs={step: to_json(config) for step, config in plan.configs.items()},
        ensemble=to_json(plan.ensemble),
        form=plan.form if plan.form == "fused" else msgspec.UNSET,
    )


def record_path(state: Path, product: str) -> Path:
    """Return the file in which a server records what it has loaded of a product."""
    return state / f"{SLOTS_FOLDER}-{product}.json"


def read_record(path: Path) -> ServingRecord:
    """
    Read what a server has loaded, or had.

    Raises:
        ServerError: The file does not exist or cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServingRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem = f"nothing was served from {path.parent} before"
        raise ServerError("tritonserver", problem) from error


def loaded_slots(record: ServingRecord) -> dict[str, list[int]]:
    """List the slots of each step that stay loaded according to a record."""
    loaded: dict[str, set[int]] = {step: set() for step in record.active.slots}
    for release in (record.active, record.previous):
        if release is None:
            continue
        for step in loaded.keys() & release.slots.keys():
            loaded[step].add(release.slots[step])
        if release.canary is not None:
            loaded[release.canary.step].add(release.canary.slot)
    return {step: sorted(slots) for step, slots in loaded.items()}


def require_shape(old: ServingRecord, plan: ServingPlan) -> None:
    """Fail unless both releases fit the same configurations."""
    if plan.configs.keys() != old.configs.keys():
        problem = "has other steps than the release that is loaded; restart it"
        raise ServerError(plan.product, problem)
    for step, config in plan.configs.items():
        was, now = json.loads(old.configs[step]), json.loads(to_json(config))
        for key in _SHAPE:
            if was.get(key) != now.get(key):
                problem = f"{key} of config.pbtxt has changed; the server has to be"
                raise ServerError(step, f"{problem} restarted to serve it")
