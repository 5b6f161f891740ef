"""
Hold a server's own model repository: verified copies, each in its own slot.

The repository that people publish to changes while a server runs: files are copied in,
half of them at first, or changed by mistake. The server copies what it loads out of
that repository once and verifies the hashes as it copies; later changes do not reach
the copy.

A slot is what Triton calls a version. An ONNX model keeps its number. A Python step
receives parameters from its release, so one version in two releases takes two slots:
version 3 is served in slot 3001, then 3002. These parameters lie next to the step's
code, in `slot.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError, ServerError
from tollgate.repository.configs import CONFIG_FILE, NAMED_CONFIGS
from tollgate.repository.hashes import (
    PLAN_FILE,
    SHORT_DIGITS,
    hash_file,
    plan_record,
    version_files,
)
from tollgate.repository.releases.serving_plan import Part
from tollgate.repository.versions import list_versions
from tollgate.schema import SLOT_FILE
from tollgate.server.processes.state_lock import make_private_folder

_ORIGIN = ".origin"  # file with the path of the repository
_PER_VERSION = 1000
_CHUNK_BYTES = 1 << 20


class Slot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The content of a slot.

    Attributes:
        version: Its version in the repository it came from.
        hashes: SHA-256 of each file of it, by path below the version directory.
        parameters: Parameters from its release; None for a step that receives none.
    """

    version: int
    hashes: Mapping[str, str]
    parameters: Mapping[str, str] | None = msgspec.field(name="told")


class Slots:
    """
    The copies that one server reads.

    Args:
        folder: The repository that Triton is started with; created if missing.

    Raises:
        SetupError: It cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        make_private_folder(folder)
        self.folder = folder.resolve()
        self._owners: dict[str, str] = {}

    def claim(self, step: str, *, product: str) -> None:
        """
        Reserve the slots of a step for one product.

        Each product removes the slots that it no longer needs.

        Raises:
            RepositoryError: Another product has reserved them.
        """
        owner = self._owners.setdefault(step, product)
        if owner != product:
            problem = f"is a step of {owner} and of {product}; each needs its own"
            raise RepositoryError(step, problem)

    def place(self, part: Part, *, repository: Path, loaded: Collection[int]) -> int:
        """
        Copy a part into a slot, unless a slot holds it already; return the slot.

        Args:
            loaded: Slots of the step that must stay as they are.

        Raises:
            RepositoryError: A file does not match its hash in the release, or cannot be
                read.
            ServerError: No slot is free, or the copy cannot be written.
        """
        held = self.holds(part, repository=repository)
        if held is not None:
            return held
        model = self.folder / part.step
        with _written(part.step):
            model.mkdir(exist_ok=True)
            _link_model_files(repository / part.step, model)
        source = repository / part.step / str(part.version)
        for number in self._numbers(part):
            if number not in loaded:
                self._copy(source, model / str(number), wanted=_slot(part))
                return number
        problem = f"version {part.version} is served with other files: no slot is free"
        raise ServerError(part.step, problem)

    def holds(self, part: Part, *, repository: Path) -> int | None:
        """Find the slot that holds a part, byte by byte; None if there is none."""
        source = repository / part.step / str(part.version)
        for number in self._numbers(part):
            directory = self.folder / part.step / str(number)
            if _holds(directory, _slot(part), source=source):
                return number
        return None

    @property
    def origin(self) -> Path | None:
        """The repository that is copied from; None before the first copy."""
        try:
            return Path((self.folder / _ORIGIN).read_text())
        except OSError:
            return None

    def begin(self, origin: Path) -> None:
        """
        Set the repository to copy from; call it once, before the first copy.

        Partial copies that a killed server left are removed.
        """
        (self.folder / _ORIGIN).write_text(str(origin.resolve()))
        for left in self.folder.parent.glob(f".{self.folder.name}-*"):
            shutil.rmtree(left, ignore_errors=True)

    def add_ensemble(self, name: str) -> None:
        """
        Make the directories that Triton requires of an ensemble.

        Raises:
            ServerError: They cannot be made.
        """
        with _written(name):
            (self.folder / name / "1").mkdir(parents=True, exist_ok=True)

    def sweep(self, step: str, *, keep: Collection[int]) -> None:
        """
        Remove the slots of a step that are not in `keep`.

        An empty directory is a version of an ensemble, and stays.
        """
        for number in list_versions(self.folder, step):
            directory = self.folder / step / str(number)
            if number not in keep and any(directory.iterdir()):
                shutil.rmtree(directory, ignore_errors=True)

    def require_whole(self, step: str, number: int) -> None:
        """
        Fail unless a slot holds what was copied into it.

        Raises:
            ServerError: The slot is damaged or missing.
        """
        directory = self.folder / step / str(number)
        slot = read_slot(directory)
        if slot is None or _hashes(directory) != dict(slot.hashes):
            raise ServerError(step, f"slot {number} is damaged or not there")

    def _numbers(self, part: Part) -> list[int]:
        if part.parameters is None:
            return [part.version]
        first = part.version * _PER_VERSION
        model = self.folder / part.step
        there = set(list_versions(self.folder, part.step)) if model.is_dir() else set()
        used = [n for n in sorted(there) if first < n < first + _PER_VERSION]
        fresh = next(
            (n for n in range(first + 1, first + _PER_VERSION) if n not in there), None
        )
        return used if fresh is None else [*used, fresh]

    def _copy(self, source: Path, target: Path, *, wanted: Slot) -> None:
        with _written(target.parent.name):
            parent = self.folder.parent
            staged = Path(tempfile.mkdtemp(prefix=f".{self.folder.name}-", dir=parent))
            try:
                _fill(staged, source, wanted=wanted)
                shutil.rmtree(target, ignore_errors=True)
                os.rename(staged, target)
            finally:
                shutil.rmtree(staged, ignore_errors=True)


def _fill(staged: Path, source: Path, *, wanted: Slot) -> None:
    """Copy the files of a slot."""
    for name, digest in wanted.hashes.items():
        _copy_file(source / name, staged / name, sha256=digest)
    # A plan is built on this machine for this model; it is copied too, without a hash
    # in the release.
    plan = source / PLAN_FILE
    for path in (plan, plan_record(plan)):
        if path.is_file():
            shutil.copyfile(path, staged / path.name)
    (staged / SLOT_FILE).write_bytes(msgspec.json.encode(wanted))
    staged.chmod(0o755)


@contextlib.contextmanager
def _written(step: str) -> Iterator[None]:
    """Raise ServerError with the step's name if its copy cannot be written."""
    try:
        yield
    except OSError as exc:
        why = ": ".join(map(str, filter(None, (exc.strerror, exc.filename))))
        raise ServerError(step, f"its copy cannot be written: {why}") from exc


def _slot(part: Part) -> Slot:
    return Slot(part.version, part.hashes, part.parameters)


def read_slot(directory: Path) -> Slot | None:
    """Read the description of a slot; None if there is no complete one."""
    try:
        return msgspec.json.decode((directory / SLOT_FILE).read_bytes(), type=Slot)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _holds(directory: Path, wanted: Slot, *, source: Path) -> bool:
    """Return whether a slot holds exactly this content, byte by byte."""
    if read_slot(directory) != wanted:
        return False
    return _hashes(directory) == dict(wanted.hashes) and _same_plan(
        directory, source / PLAN_FILE
    )


def _hashes(directory: Path) -> dict[str, str]:
    """Hash the files that were copied into a slot; empty if one cannot be read."""
    plan = directory / PLAN_FILE
    ours = {SLOT_FILE, plan.name, plan_record(plan).name}
    try:
        return {
            path.relative_to(directory).as_posix(): hash_file(path)
            for path in version_files(directory)
            if path.name not in ours
        }
    except RepositoryError:
        return {}


def _same_plan(directory: Path, plan: Path) -> bool:
    ours = directory / PLAN_FILE
    if ours.is_file() and plan.is_file():
        return hash_file(ours) == hash_file(plan)
    return ours.is_file() == plan.is_file()


def _copy_file(source: Path, target: Path, *, sha256: str) -> None:
    """Copy a file, and verify the hash of the copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with source.open("rb") as origin, target.open("xb") as file:
            while chunk := origin.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
    except FileNotFoundError as exc:
        raise RepositoryError(source, "is missing") from exc
    found = digest.hexdigest()
    if found != sha256:
        was, now = sha256[:SHORT_DIGITS], found[:SHORT_DIGITS]
        raise RepositoryError(source, f"has changed: release {was}…, file {now}…")


def _link_model_files(origin: Path, model: Path) -> None:
    """
    Link the files next to the versions: a configuration may refer to them.

    Configurations are not linked: an edit would make Triton load the step again.
    """
    for path in origin.resolve().iterdir():
        link = model / path.name
        if path.name.isdigit() or path.name.startswith("."):
            continue
        if path.name in (CONFIG_FILE, NAMED_CONFIGS):
            continue
        if link.is_symlink() and link.readlink() == path:
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(path)
