"""A device steps down where resources are short, and up again when it has room."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.edge.bundles import REPOSITORY, Keys
from tollgate import Engine
from tollgate.audit.releases.archive import read_release_files
from tollgate.edge.device import Device
from tollgate.edge.device_store import JOURNAL
from tollgate.edge.limits import Limits
from tollgate.edge.packing import pack
from tollgate.edge.variants import (
    UP_AFTER_S,
    Resources,
    VariantChoice,
    late_share,
    read_resources,
)
from tollgate.errors import InputError, RepositoryError
from tollgate.journal.decision_record import decode_chunk
from tollgate.repair.spool_segments import read_segment, segments
from tollgate.repository.models.artifact_file import Artifact, Figures, Trade
from tollgate.schema import Degraded

NAMES = ("full", "pruned", "rules")
IDLE = Resources(late_percent=0.0, resident_mib=80.0)
ARTIFACT = "artifact.json"


@pytest.mark.parametrize(
    ("short", "words"),
    [
        (Resources(late_percent=6.0, resident_mib=80.0), "6 % of the requests late"),
        (Resources(late_percent=0.0, resident_mib=121.0), "121 MiB resident"),
        (Resources(0.0, 80.0, battery_percent=19.0), "battery at 19 %"),
    ],
)
def test_each_resource_steps_down_and_up_with_room(
    short: Resources, words: str
) -> None:
    """Down at once, one variant a second; up after a time with room, one by one."""
    choice = VariantChoice(NAMES, Limits())
    assert choice.note(IDLE, now_s=0.0) == "full"
    assert choice.note(short, now_s=1.0) == "pruned"
    assert choice.reason == words
    assert choice.note(short, now_s=2.0) == "rules"
    assert choice.note(short, now_s=3.0) == "rules"
    found = [choice.note(IDLE, now_s=4.0 + second) for second in range(70)]
    changes = [second for second in range(1, 70) if found[second] != found[second - 1]]
    assert changes == [UP_AFTER_S, 2 * UP_AFTER_S]
    assert (found[0], found[-1]) == ("rules", "full")


def test_a_load_at_the_limit_does_not_change_to_and_fro() -> None:
    """Between the limit and three quarters of it, the variant stays."""
    choice = VariantChoice(NAMES, Limits())
    choice.note(Resources(0.0, 125.0), now_s=0.0)
    near = Resources(4.9, 119.0, battery_percent=25.0)
    found = {choice.note(near, now_s=float(second)) for second in range(1, 500)}
    assert found == {"pruned"}
    for second in range(500, 500 + int(UP_AFTER_S)):
        assert choice.note(IDLE, now_s=float(second)) == "pruned"
    choice.note(near, now_s=529.5)  # the time with room begins again
    assert choice.note(IDLE, now_s=530.0) == "pruned"


@pytest.mark.parametrize(
    ("latest", "share"),
    [
        ([], 0.0),
        ([(99.9, True)] * 19, 0.0),  # too few to judge
        ([(99.9, True)] * 20, 1.0),
        ([(98.0, True)] * 50 + [(99.5, False)] * 20, 0.0),  # the last second
        ([(98.0, True)] * 50 + [(99.5, False)] * 10, 0.5),  # the last twenty
        ([(1.0, False)] * 39 + [(99.5, True)], 0.05),
        ([(99.1, False)] * 190 + [(99.9, True)] * 10, 0.05),
    ],
)
def test_the_share_of_late_requests(
    latest: list[tuple[float, bool]], share: float
) -> None:
    """Of the last second, or of twenty; at 100 s on the clock."""
    assert late_share(latest, now_s=100.0) == share


def test_one_variant_has_nowhere_to_go() -> None:
    """A bundle without others is decided by its model, whatever happens."""
    choice = VariantChoice(NAMES[:1], Limits())
    assert choice.note(Resources(100.0, 900.0), now_s=0.0) == "full"


@pytest.mark.parametrize(
    "limits",
    [Limits(late_ms=0.0), Limits(late_percent=101.0), Limits(resident_mib=-1.0)],
)
def test_limits_that_cannot_hold_are_refused(limits: Limits) -> None:
    """Each by its name."""
    with pytest.raises(InputError, match="is not above 0 and up to"):
        limits.check()


def test_batteries_in_use_count(tmp_path: Path) -> None:
    """The lowest of those that are not charging; none on a machine without any."""
    for name, charge, status in (
        ("BAT0", "55\n", "Discharging\n"),
        ("BAT1", "40\n", "Not charging\n"),
        ("BAT2", "3\n", "Charging\n"),
        ("BAT3", "words\n", "Discharging\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "capacity").write_text(charge)
        (tmp_path / name / "status").write_text(status)
    (tmp_path / "AC").mkdir()
    found = read_resources(12.5, power=tmp_path)
    assert (found.battery_percent, found.late_percent) == (40.0, 12.5)
    assert 20 < found.resident_mib < 4_000
    assert read_resources(0.0, power=tmp_path / "absent").battery_percent is None


def pruned_folder(folder: Path, **changes: Any) -> Path:
    """Copy the committed model, with a record as if it were a pruned one."""
    made = folder / "pruned"
    shutil.copytree(REPOSITORY / "fraud_model" / "1", made)
    figures = Figures(None, None, us_per_row={1: 12.5}, size_bytes=1)
    trade = Trade("prune", "x", rows=5_000, flips=7, max_delta=0.1, before=figures,
                  after=figures)  # fmt: skip
    path = made / ARTIFACT
    artifact = msgspec.json.decode(path.read_bytes(), type=Artifact)
    artifact = msgspec.structs.replace(artifact, **{"trades": (trade,), **changes})
    path.write_bytes(msgspec.json.encode(artifact))
    return made


def purchases(first: int, count: int) -> dict[str, list[object]]:
    """Make purchases of a few customers."""
    draw = np.random.default_rng(first)
    return {
        "transaction_id": [f"t{first + row}" for row in range(count)],
        "customer_id": [f"c{one}" for one in draw.integers(0, 5, count)],
        "terminal_id": [f"m{one}" for one in draw.integers(0, 3, count)],
        "amount": (draw.integers(1_000, 90_000, count) / 100).tolist(),
        "event_time": [1_768_464_900_000_000 + first + row for row in range(count)],
    }


def test_answers_and_records_name_the_variant(keys: Keys, tmp_path: Path) -> None:
    """Windows go on through all of them, and the model's answers are the same after."""
    bundle = tmp_path / "fraud.bundle"
    made = pack(
        REPOSITORY,
        product="fraud",
        key=keys.signs,
        out=bundle,
        smaller=pruned_folder(tmp_path),
        rules=True,
    )
    assert [one.name for one in made.variants] == list(NAMES)
    second = made.variants[1]
    assert (second.compared, second.differing, second.us_per_row) == (5_000, 7, 12.5)
    parts = [purchases(first, 50) for first in (0, 100, 200, 300)]
    now_us = 1_768_465_000_000_000
    with (
        Engine.open(REPOSITORY, product="fraud") as engine,
        Device.open(
            bundle,
            key=keys.public,
            state=tmp_path / "state",
            limits=Limits(late_ms=1e6, resident_mib=1e6),
        ) as device,
    ):
        for part, name in zip(parts, ("full", "pruned", "rules", "full"), strict=True):
            wanted = engine.decide(part, now_us=now_us)
            if name != device.variant:
                device.decide_by(name)
            found = device.decide(part, now_us=now_us)
            suffix = "" if name == "full" else f".{name}"
            assert set(found["release"]) == {f"fraud-1{suffix}"}
            if name == "rules":
                bit = np.uint32(Degraded.MODEL_OUTPUT)
                assert (found["degraded"] & bit).all()
                assert (found["degraded"] & ~bit == wanted["degraded"]).all()
                assert set(found["decision"]) == {"review"}
                assert np.isnan(found["score"]).all()
            else:
                assert found["score"].tobytes() == wanted["score"].tobytes()
                assert found["decision"].tolist() == wanted["decision"].tolist()
    records = [
        decode_chunk(raw)
        for path in segments(tmp_path / "state" / JOURNAL / "fraud")
        for raw in read_segment(path, path.read_bytes()).events
    ]
    releases = [one.release for one in records for _ in range(len(one))]
    assert releases == [
        name for name in ("fraud-1", "fraud-1.pruned", "fraud-1.rules", "fraud-1")
        for _ in range(50)
    ]  # fmt: skip


def test_a_device_steps_down_by_itself(keys: Keys, tmp_path: Path) -> None:
    """With a limit that every process exceeds, it decides by its rules soon."""
    bundle = tmp_path / "fraud.bundle"
    pack(REPOSITORY, product="fraud", key=keys.signs, out=bundle, rules=True)
    with Device.open(
        bundle,
        key=keys.public,
        state=tmp_path / "state",
        limits=Limits(resident_mib=1.0),
    ) as device:
        device._choose_variant()
        assert device.variant == "rules"
        answer = device.decide(purchases(0, 3))
    assert set(answer["release"]) == {"fraud-1.rules"}


def test_memory_has_a_second_to_fall_after_a_change(keys: Keys, tmp_path: Path) -> None:
    """The next variant is not left for the memory of the one before."""
    bundle = tmp_path / "fraud.bundle"
    pack(
        REPOSITORY,
        product="fraud",
        key=keys.signs,
        out=bundle,
        smaller=pruned_folder(tmp_path),
        rules=True,
    )
    with Device.open(
        bundle,
        key=keys.public,
        state=tmp_path / "state",
        limits=Limits(late_ms=1e6, resident_mib=1.0),
    ) as device:
        for one in device._workers:
            one.stop()
        device.decide_by("full")
        device._choice = VariantChoice(NAMES, device._limits)
        device._changed_s = time.monotonic() - 2.0
        device._choose_variant()
        assert device.variant == "pruned"
        for _ in range(3):
            device._changed_s = time.monotonic()
            device._choose_variant()
            assert device.variant == "pruned"
        device._changed_s -= 2.0
        device._choose_variant()
        assert device.variant == "rules"


def slow(device: Device, delay_s: float, *, where: str) -> None:
    """Make the model or the disk of a device slow."""
    owner, name = (device._engine._model, "probabilities")
    if where == "disk":
        owner, name = device._store, "commit"
    original = getattr(owner, name)

    def slowly(*given: Any) -> Any:
        time.sleep(delay_s)
        return original(*given)

    setattr(owner, name, slowly)


@pytest.mark.parametrize(
    ("where", "variant"), [("model", "fraud-1.rules"), ("disk", "fraud-1")]
)
def test_a_slow_model_steps_down_and_a_slow_disk_does_not(
    where: str, variant: str, *, keys: Keys, tmp_path: Path
) -> None:
    """Rules without a model are not written faster."""
    bundle = tmp_path / "fraud.bundle"
    pack(REPOSITORY, product="fraud", key=keys.signs, out=bundle, rules=True)
    with Device.open(
        bundle,
        key=keys.public,
        state=tmp_path / "state",
        limits=Limits(late_ms=1_000.0, resident_mib=1e6),
    ) as device:
        slow(device, 1.2, where=where)
        for part in range(5):  # four at once, in a batch
            with ThreadPoolExecutor(4) as pool:
                rows = [purchases(100 * part + one, 1) for one in range(4)]
                answers = list(pool.map(device.decide, rows))
        device._choose_variant()
        answers = [device.decide(purchases(900, 1))]
    assert set(answers[0]["release"]) == {variant}


def test_the_archive_finds_the_release_of_a_variant() -> None:
    """Its files are those of the release; a name that is none stays unknown."""
    whole = read_release_files(REPOSITORY, "fraud-1", product="fraud")
    assert whole
    for name in ("fraud-1.pruned", "fraud-1.rules"):
        assert read_release_files(REPOSITORY, name, product="fraud") == whole
    assert not read_release_files(REPOSITORY, "fraud-1.other", product="fraud")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trades": ()}, "has no smaller model with its measured loss"),
        ({"spec_hash": "0" * 16}, "spec_hash: is 0000000000000000, the release has"),
        ({"sha256": "0" * 64}, "is not the model of"),
    ],
)
def test_a_smaller_model_that_does_not_fit_is_refused(
    changes: dict[str, Any], words: str, *, keys: Keys, tmp_path: Path
) -> None:
    """Nothing is written."""
    out = tmp_path / "fraud.bundle"
    with pytest.raises(RepositoryError, match=words):
        pack(
            REPOSITORY,
            product="fraud",
            key=keys.signs,
            out=out,
            smaller=pruned_folder(tmp_path, **changes),
        )
    assert not out.exists()
