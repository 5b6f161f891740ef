"""
Name the releases that the devices of a group shall run, in one signed file.

The centre writes the file into an object store, each time with a higher number, and
devices refuse a lower one: a copy of an older file cannot take a release back. To go
back to an older release, the file names the release that is withdrawn.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from tollgate.edge.bundle import read_bundle
from tollgate.errors import ArgumentError, InputError
from tollgate.repository.field_types import Name, Sha256

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

    from tollgate.repository.remote.objects import Objects

KIND, FORMAT = "tollgate device group", 1
GROUP_FILE, BUNDLES, DEVICES = "group.json", "bundles", "devices"  # of a group
_MOST_EARLIER = 8
_MOST_BYTES = 1 << 20

Sequence = Annotated[int, msgspec.Meta(ge=1)]


class BundleReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name a bundle: its SHA-256, and release and sequence of its manifest."""

    sha256: Sha256
    release: Name
    sequence: Sequence


class Canary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bundle for a share of the devices, in percent."""

    bundle: BundleReference
    percent: Annotated[float, msgspec.Meta(gt=0, le=100)]


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    Name the releases of a group of devices.

    Attributes:
        kind: Marks the content as a group.
        format: Version of this format.
        number: Of this version of the file, from 1 on.
        bundle: Bundle of all other devices.
        earlier: Bundles that all devices had before, the latest first.
        canary: Bundle of a share of the devices; None for none.
        pins: Bundle of single devices, by device.
        withdrawn: Highest sequence that was taken back: a device that has it, or a
            lower one, goes back to a bundle of a lower sequence. 0 for none.
    """

    kind: Literal["tollgate device group"] = "tollgate device group"
    format: int = FORMAT
    name: Name
    product: Name
    number: Sequence
    bundle: BundleReference
    earlier: tuple[BundleReference, ...] = ()
    canary: Canary | None = None
    pins: dict[Name, BundleReference] = {}
    withdrawn: Annotated[int, msgspec.Meta(ge=0)] = 0

    def bundle_for(self, device: str) -> BundleReference:
        """Return the bundle that a device shall run."""
        if device in self.pins:
            return self.pins[device]
        canary = self.canary
        if canary and share_of(device, canary.bundle.sha256) < canary.percent:
            return canary.bundle
        return self.bundle


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text, and the signature of its bytes in hexadecimal digits."""

    content: str
    signature: str


class _Head(msgspec.Struct):
    """The fields by which a group of any format is recognized."""

    kind: str = ""
    format: int = 0


def share_of(device: str, bundle: str) -> float:
    """
    Place a device in the share of a canary: 0 to 100, always the same.

    Args:
        bundle: The canary's SHA-256, so that each canary starts with other devices.
    """
    digest = hashlib.sha256(f"{bundle} {device}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * 100


def encode_group(group: Group, key: Ed25519PrivateKey) -> bytes:
    """Sign a group."""
    content = msgspec.json.encode(group)
    signature = key.sign(content).hex()
    signed = msgspec.json.encode(_Signed(content.decode(), signature))
    return msgspec.json.format(signed, indent=1) + b"\n"


def decode_group(
    raw: bytes, key: Ed25519PublicKey, *, source: object, name: str
) -> Group:
    """
    Verify a signed group.

    Args:
        source: Where it is from, for errors.
        name: Name of the group that it must be of.

    Raises:
        InputError: It is damaged, not signed with this key's private key, was changed,
            or is of another group or format.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        signed = msgspec.json.decode(raw[:_MOST_BYTES], type=_Signed)
        signature, content = bytes.fromhex(signed.signature), signed.content.encode()
    except (msgspec.MsgspecError, ValueError) as error:
        problem = "is no signed group file, or only a part of one"
        raise InputError(source, problem) from error
    try:
        key.verify(signature, content)
    except InvalidSignature as error:
        problem = "the signature does not fit: another key signed it, or it was changed"
        raise InputError(source, problem) from error
    try:
        head = msgspec.json.decode(content, type=_Head)
        if head.kind != KIND:
            raise InputError(source, f"is no {KIND}")
        if head.format != FORMAT:
            problem = f"has format {head.format}, this Tollgate reads {FORMAT}"
            raise InputError(source, problem)
        group = msgspec.json.decode(content, type=Group)
    except msgspec.MsgspecError as error:
        raise InputError(source, str(error)) from error
    if group.name != name:
        raise InputError(source, f"is of group {group.name}, not {name}")
    return group


def open_objects(url: str) -> Objects:
    """
    Open the object store of groups: a folder, or an address such as s3://bucket/edge.

    Raises:
        ArgumentError: The address is not valid.
        SetupError: The library of that kind of store is not installed.
    """
    from tollgate.repository.remote.objects import Objects

    try:
        return Objects(url)
    except ArgumentError as error:
        raise ArgumentError("store", error.problem) from error


def release(
    objects: Objects,
    name: str,
    *,
    bundle: Path,
    key: Ed25519PrivateKey,
    canary: float | None = None,
    pin: str | None = None,
) -> Group:
    """
    Let the devices of a group run a bundle; create the group if there is none.

    Args:
        canary: Share of the devices, in percent; None for all.
        pin: The one device that shall run it; None for all.

    Raises:
        InputError: The bundle cannot be used, or is older than the group's.
        ObjectStoreError: The store does not answer, or somebody else changed the group
            meanwhile.
    """
    if pin is not None:
        _require_name(pin, of="the device's name")
    verified = read_bundle(bundle, key=key.public_key()).manifest
    content = bundle.read_bytes()
    reference = BundleReference(
        hashlib.sha256(content).hexdigest(), verified.release, verified.sequence
    )
    old, stamp = _read(objects, name, key)
    if old is None:
        if canary is not None or pin is not None:
            problem = "has no release yet: first release one to all devices"
            raise InputError(f"group {name}", problem)
        product = verified.product
        new = Group(name=name, product=product, number=1, bundle=reference)
    else:
        if old.product != verified.product:
            problem = f"is of {verified.product}, group {name} is of {old.product}"
            raise InputError(bundle, problem)
        if reference.sequence < old.bundle.sequence:
            problem = (
                f"has sequence {reference.sequence}, group {name} has "
                f"{old.bundle.sequence}: it is older; `tollgate edge rollback` goes "
                "back to an earlier release"
            )
            raise InputError(bundle, problem)
        new = _released(old, reference, canary=canary, pin=pin)
    path = f"{name}/{BUNDLES}/{reference.sha256}.bundle"
    objects.write(path, bundle, was=objects.stamp(path))
    _write(objects, new, key, was=stamp)
    return new


def _released(
    old: Group, reference: BundleReference, *, canary: float | None, pin: str | None
) -> Group:
    change: dict[str, object] = {"number": old.number + 1}
    taken = [0]  # sequences of bundles that a device may have and now loses
    if pin is not None:
        taken += [old.pins[pin].sequence] if pin in old.pins else []
        change |= {"pins": {**old.pins, pin: reference}}
    else:
        given = None if canary is None else Canary(reference, canary)
        before = old.canary
        if before and (before.bundle != reference or (canary or 100) < before.percent):
            taken.append(before.bundle.sequence)
        change |= {"canary": given}
        if given is None and reference != old.bundle:
            earlier = (old.bundle, *old.earlier)[:_MOST_EARLIER]
            change |= {"bundle": reference, "earlier": earlier}
    change |= {"withdrawn": max(old.withdrawn, *taken)}
    new: Group = msgspec.structs.replace(old, **change)
    return new


def roll_back(
    objects: Objects, name: str, *, key: Ed25519PrivateKey, pin: str | None = None
) -> Group:
    """
    Take back the canary of a group; without one, its last release.

    Args:
        pin: The one device whose pin is taken back instead; None for none.

    Raises:
        InputError: There is no such group, or nothing to take back.
        ObjectStoreError: See `release`.
    """
    old, stamp = _read(objects, name, key)
    if old is None:
        raise InputError(f"group {name}", f"is not in {objects.url}")
    change: dict[str, object]
    if pin is not None:
        if pin not in old.pins:
            raise ArgumentError("pin", f"{pin} has no pin in group {name}")
        pins = dict(old.pins)
        taken, change = pins.pop(pin), {"pins": pins}
    elif old.canary is not None:
        taken, change = old.canary.bundle, {"canary": None}
    elif old.earlier:
        taken, (bundle, *earlier) = old.bundle, old.earlier
        change = {"bundle": bundle, "earlier": tuple(earlier)}
    else:
        raise InputError(f"group {name}", "has no earlier release")
    new: Group = msgspec.structs.replace(
        old,
        number=old.number + 1,
        withdrawn=max(old.withdrawn, taken.sequence),
        **change,
    )
    _write(objects, new, key, was=stamp)
    return new


def _require_name(name: str, *, of: str) -> None:
    """
    Require a name that a group or a device may have.

    Raises:
        InputError: It has other characters, or too many.
    """
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        problem = f"{name!r} is not 1 to 64 letters, digits, dots, _ and -"
        raise InputError(of, problem) from error


def _read(
    objects: Objects, name: str, key: Ed25519PrivateKey
) -> tuple[Group | None, str | None]:
    _require_name(name, of="the group's name")
    path = f"{name}/{GROUP_FILE}"
    found = objects.read(path)
    if found is None:
        return None, None
    raw, stamp = found
    source = objects.name(path)
    return decode_group(raw, key.public_key(), source=source, name=name), stamp


def _write(
    objects: Objects, group: Group, key: Ed25519PrivateKey, *, was: str | None
) -> None:
    raw = encode_group(group, key)
    decode_group(raw, key.public_key(), source=group.name, name=group.name)
    with tempfile.NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        objects.write(f"{group.name}/{GROUP_FILE}", Path(file.name), was=was)
