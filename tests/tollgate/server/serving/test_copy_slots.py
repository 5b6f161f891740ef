"""A server's own copies: proven on the way in, and out of everybody's reach after."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tollgate.errors import RepositoryError, ServerError
from tollgate.repository.releases.serving_plan import Part
from tollgate.schema import SLOT_FILE
from tollgate.server.serving.copy_slots import Slots, read_slot

STEP = "decide"
FILES = {"model.py": b"code", "deep/words.txt": b"words"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one step with the version 3."""
    for name, content in FILES.items():
        path = tmp_path / "models" / STEP / "3" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "models" / STEP / "config.pbtxt").write_text("")
    (tmp_path / "models" / STEP / "labels.txt").write_text("yes\nno\n")
    return tmp_path / "models"


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    """An empty folder of copies."""
    return Slots(tmp_path / "state" / "served")


def part(parameters: dict[str, str] | None) -> Part:
    """Version 3, with the hashes of its files."""
    hashes = {
        name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()
    }
    return Part(step=STEP, version=3, hashes=hashes, parameters=parameters)


def test_each_telling_of_a_version_has_a_slot_of_its_own(
    slots: Slots, repository: Path
) -> None:
    """3001, 3002; what was placed before is found again."""
    one, two = part({"release": "a-1"}), part({"release": "a-2"})
    assert slots.place(one, repository=repository, loaded=()) == 3001
    assert slots.place(two, repository=repository, loaded=[3001]) == 3002
    assert slots.place(one, repository=repository, loaded=[3001, 3002]) == 3001
    for number, parameters in ((3001, one.parameters), (3002, two.parameters)):
        directory = slots.folder / STEP / str(number)
        assert {name: (directory / name).read_bytes() for name in FILES} == FILES
        slot = read_slot(directory)
        assert slot is not None
        assert (slot.version, slot.parameters) == (3, parameters)


def test_a_step_that_nobody_tells_anything_keeps_its_number(
    slots: Slots, repository: Path
) -> None:
    """An ONNX model: its slot is its version."""
    assert slots.place(part(None), repository=repository, loaded=()) == 3


def test_a_slot_that_nothing_needs_is_used_again(
    slots: Slots, repository: Path
) -> None:
    """What is loaded is never written over; what is not, is."""
    first = slots.place(part({"release": "a-1"}), repository=repository, loaded=())
    again = slots.place(part({"release": "a-2"}), repository=repository, loaded=())
    assert again == first
    slots.place(part({"release": "a-3"}), repository=repository, loaded=[again])
    slot = read_slot(slots.folder / STEP / str(again))
    assert slot is not None
    assert slot.parameters == {"release": "a-2"}


def test_other_bytes_under_the_number_of_a_loaded_model_are_refused(
    slots: Slots, repository: Path
) -> None:
    """A version never changes; this one did, and the old bytes serve."""
    slots.place(part(None), repository=repository, loaded=())
    (repository / STEP / "3" / "model.py").write_bytes(b"other")
    changed = Part(
        step=STEP,
        version=3,
        hashes={**part(None).hashes, "model.py": hashlib.sha256(b"other").hexdigest()},
        parameters=None,
    )
    with pytest.raises(ServerError, match="version 3 is served with other files"):
        slots.place(changed, repository=repository, loaded=[3])
    assert (slots.folder / STEP / "3" / "model.py").read_bytes() == b"code"


@pytest.mark.parametrize("damage", [b"other", None])
def test_a_file_that_is_not_what_the_release_says_is_not_copied(
    slots: Slots, repository: Path, damage: bytes | None
) -> None:
    """Changed or missing: named, and no slot and no half of one is left."""
    path = repository / STEP / "3" / "deep/words.txt"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with pytest.raises(RepositoryError, match=r"3/deep/words\.txt: (has changed|is m)"):
        slots.place(part(None), repository=repository, loaded=())
    assert not (slots.folder / STEP / "3").exists()
    assert sorted(path.name for path in slots.folder.parent.iterdir()) == ["served"]


@pytest.mark.parametrize("damage", [b"x", b'{"hashes": {"\xff": "x"}}'])
@pytest.mark.parametrize("name", ["model.py", SLOT_FILE])
def test_a_copy_that_was_damaged_is_made_anew(
    slots: Slots, repository: Path, name: str, damage: bytes
) -> None:
    """A disk may lose what it was given."""
    slots.place(part(None), repository=repository, loaded=())
    copy = slots.folder / STEP / "3" / name
    before = copy.read_bytes()
    copy.write_bytes(damage)
    assert slots.place(part(None), repository=repository, loaded=()) == 3
    assert copy.read_bytes() == before


def test_a_copy_that_cannot_be_begun_is_told_as_such(
    slots: Slots, repository: Path
) -> None:
    """Here a file is in the way; a full disk ends in the same place."""
    (slots.folder / STEP).write_bytes(b"")
    with pytest.raises(ServerError, match="decide: its copy cannot be written: "):
        slots.place(part(None), repository=repository, loaded=())


def test_what_lies_beside_the_versions_is_there_and_configurations_are_not(
    slots: Slots, repository: Path
) -> None:
    """A configuration that is edited must not have Triton load the step again."""
    slots.place(part(None), repository=repository, loaded=())
    there = {path.name for path in (slots.folder / STEP).iterdir()}
    assert there == {"3", "labels.txt"}
    assert (slots.folder / STEP / "labels.txt").read_text() == "yes\nno\n"


def test_a_sweep_leaves_what_is_needed(slots: Slots, repository: Path) -> None:
    """The rest is gone."""
    numbers: list[int] = []
    for name in ("a-1", "a-2", "a-3"):
        parameters = part({"release": name})
        numbers.append(slots.place(parameters, repository=repository, loaded=numbers))
    slots.sweep(STEP, keep=numbers[1:])
    there = {path.name for path in (slots.folder / STEP).iterdir() if path.is_dir()}
    assert there == {"3002", "3003"}
