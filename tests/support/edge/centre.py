"""A centre with an object store in a folder, and releases for a group of devices."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.support.edge.bundles import Keys, packed
from tollgate.edge.bundle import Manifest, read_bundle, write_bundle
from tollgate.edge.device import Device
from tollgate.edge.group import Group, open_objects, release, roll_back
from tollgate.edge.sync import Sync, read_active

GROUP = "tills"


class Centre:
    """An object store in a folder, keys, and bundles of one release each."""

    def __init__(self, folder: Path) -> None:
        self.keys = Keys(folder)
        self.folder = folder
        self.store = folder / "store"
        self.store.mkdir()
        self._first = packed(self.keys, folder)

    @property
    def url(self) -> str:
        """Return the store's address."""
        return str(self.store)

    def bundle(self, sequence: int, *, keys: Keys | None = None) -> Path:
        """Sign the release again, under another name and number."""
        read = read_bundle(self._first, key=self.keys.verifies)
        manifest: Manifest = msgspec.structs.replace(
            read.manifest, release=f"fraud-{sequence}", sequence=sequence
        )
        out = self.folder / f"{sequence}.bundle"
        write_bundle(out, manifest, read.files, key=(keys or self.keys).signs)
        return out

    def release(
        self, sequence: int, *, canary: float | None = None, pin: str | None = None
    ) -> Group:
        """Release a bundle to the group."""
        return release(
            open_objects(self.url),
            GROUP,
            bundle=self.bundle(sequence),
            key=self.keys.signs,
            canary=canary,
            pin=pin,
        )

    def roll_back(self, *, pin: str | None = None) -> Group:
        """Take a release back."""
        return roll_back(open_objects(self.url), GROUP, key=self.keys.signs, pin=pin)

    def sync(self, state: Path, device: str = "till-1") -> Sync:
        """Open the sync of a device."""
        return Sync(
            self.url, group=GROUP, device=device, folder=state, key=self.keys.public
        )

    def device(self, state: Path) -> Device:
        """Open a device that decides by the bundle which its sync activated."""
        found = read_active(state, self.keys.public)
        assert found is not None
        return Device.open(found[0], key=self.keys.public, state=state)

    def active(self, state: Path) -> str:
        """Return the release that a device shall run."""
        found = read_active(state, self.keys.public)
        assert found is not None
        return found[2].release

    @property
    def group_file(self) -> Path:
        """Return the group's file in the store."""
        return self.store / GROUP / "group.json"
