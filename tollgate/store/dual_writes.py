"""
Write events to every state that a release may read next, not only to the served one.

One key of the store lists these states: the one that is filled for the next release,
and the one that a rollback would read. Each writer (feature step, stream, drain of the
spool) applies an event to the state of its own features, and then to the others in the
list. It reads the list after its own state has the event, or at most `FRESH_S` before.
So a copy that starts `FRESH_S` after the list was written finds each event that such a
writer did not apply to the new state.

The feature step's own dual writes are in tollgate/store/fallback/fallback_chain.py.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import structs

from tollgate.errors import SpecError, StoreError
from tollgate.features.hook.hook_file import HOOK_FILE
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.store.redis.redis_store import Command
from tollgate.store.store_events import (
    Call,
    Labels,
    Packer,
    Purchases,
    purchase_entries,
)

log = logging.getLogger(__name__)

FRESH_S = 2.0

Events = TypeVar("Events", Purchases, Labels)


class WrittenState(msgspec.Struct, frozen=True):
    """
    Describe a state that all writers of a product write to.

    Attributes:
        state: Its hash, 16 hexadecimal digits.
        spec: Its features.yaml.
        hook: The hook.py of that file; empty where it names none.
        since: Time when the writes to it began, RFC 3339 in UTC.
        filled: Time when it had all older events, too; None before.
    """

    state: str
    spec: str
    hook: str
    since: str
    filled: str | None = None


class WrittenStates(msgspec.Struct, frozen=True):
    """Hold the states that all writers of a product write to."""

    states: list[WrittenState] = []


def states_key(product: str) -> bytes:
    """Return the store key of the list of a product's written states."""
    return f"tollgate:{product}:written-states".encode()


def state_text(spec: FeatureSpec) -> str:
    """Print the state hash of a spec as 16 hexadecimal digits."""
    return f"{spec.state_hash:016x}"


def written_state(path: Path, *, since: str, filled: str | None = None) -> WrittenState:
    """
    Describe the state of a features.yaml.

    Raises:
        SpecError: The file cannot be read, or is inconsistent.
    """
    spec = load_spec(path)
    return WrittenState(
        state=state_text(spec),
        spec=path.read_text("utf-8"),
        hook=spec.hook.source if spec.hook else "",
        since=since,
        filled=filled,
    )


def decode_states(value: object) -> WrittenStates:
    """
    Read the list of written states.

    Args:
        value: The store's reply; None without a list.

    Raises:
        StoreError: The store refused, or the value is not a list of states.
    """
    if value is None:
        return WrittenStates()
    if not isinstance(value, bytes):
        raise StoreError(f"the store refused the list of states: {value}")
    try:
        return msgspec.json.decode(value, type=WrittenStates)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the list of written states is damaged: {error}") from error


def load_spec_text(text: str, *, hook: str, state: str) -> FeatureSpec:
    """
    Read the text of a features.yaml.

    Args:
        text: The file.
        hook: The hook.py next to it; empty where it names none.
        state: State hash that its writer computed, 16 hexadecimal digits.

    Raises:
        SpecError: This version reads the file differently, or not at all.
    """
    with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
        path = Path(folder) / SPEC_FILE
        path.write_text(text, "utf-8")
        if hook:
            path.with_name(HOOK_FILE).write_bytes(hook.encode())
        spec = load_spec(path)
    if state_text(spec) != state:
        problem = f"has state {state_text(spec)} here, not {state}"
        raise SpecError(SPEC_FILE, problem)
    return spec


def missing_entities(source: FeatureSpec, target: FeatureSpec) -> list[str]:
    """List the keys of a target's entities that the events of a source do not have."""
    known = {entity.key for entity in source.entities}
    return [one.key for one in target.entities if one.key not in known]


def missing_columns(source: FeatureSpec, target: FeatureSpec) -> list[str]:
    """
    List the columns of a target's values that the events of a source do not have.

    A number with other decimals is another number.
    """
    forms = {one.name: (one.type, one.decimals) for one in source.fields}
    keys = {entity.key for entity in source.entities}
    names = {name for entity in target.entities for name in entity.columns}
    own = {one.name: (one.type, one.decimals) for one in target.fields}
    return sorted(
        name for name in names - keys if name in own and forms.get(name) != own[name]
    )


class TargetState:
    """
    Pack the events of one spec for the state of another one.

    Args:
        source: The spec of the events.
        target: The spec of the state.
    """

    def __init__(self, source: FeatureSpec, target: FeatureSpec) -> None:
        keys = [entity.key for entity in source.entities]
        self.spec = target
        self._places = [keys.index(entity.key) for entity in target.entities]
        self._missing = set(missing_columns(source, target))
        self._packer = Packer(target)

    def events(self, events: Events) -> Events:
        """Arrange the ids of events in the order of the target's entities."""
        chosen = [events.entity_id[place] for place in self._places]
        if isinstance(events, Purchases) and self._missing & events.fields.keys():
            known = {
                name: column
                for name, column in events.fields.items()
                if name not in self._missing
            }
            return structs.replace(events, entity_id=chosen, fields=known)
        return structs.replace(events, entity_id=chosen)

    def call(self, purchases: Purchases) -> Call:
        """Pack purchases of the source into a call for the target's state."""
        own = self.events(purchases)
        return self._packer.pack(
            purchase_entries(own), own.entity_id, columns=self._packer.columns(own)
        )


class TargetStates:
    """
    Follow the list of written states for one writer.

    Args:
        spec: The writer's features; their own state is not among the targets.

    Attributes:
        targets: The other states.
        command: Reads the list.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self.targets: list[TargetState] = []
        self.command: Command = (b"GET", states_key(spec.product))
        self._spec = spec
        self._value: object = None

    def update(self, reply: object) -> list[TargetState]:
        """
        Take the store's reply to `command`.

        A state that this writer cannot write is left out, with a line in the log.

        Returns:
            The targets that were not there before.

        Raises:
            StoreError: The store refused, or the value is not a list of states.
        """
        if reply == self._value:
            return []
        found = decode_states(reply)
        before = {state_text(one.spec): one for one in self.targets}
        targets = []
        for one in found.states:
            if one.state == state_text(self._spec):
                continue
            try:
                targets.append(before.get(one.state) or self._open(one))
            except OSError as error:  # no space for the file: the next call tries again
                problem = f"the features of state {one.state} cannot be read: {error}"
                raise StoreError(problem) from error
            except SpecError as error:
                log.error("state %s is not written: %s", one.state, error)
        self.targets, self._value = targets, reply
        return [one for one in targets if state_text(one.spec) not in before]

    def _open(self, state: WrittenState) -> TargetState:
        """
        Prepare to write a state.

        Raises:
            SpecError: Its features cannot be read, or need ids that events lack.
        """
        spec = load_spec_text(state.spec, hook=state.hook, state=state.state)
        if lacking := missing_entities(self._spec, spec):
            problem = f"needs {', '.join(lacking)}, which the events do not have"
            raise SpecError(SPEC_FILE, problem)
        return TargetState(self._spec, spec)
