"""A device runs what its group names, and the centre gets its records."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import redis

from tests.support.edge.bundles import Keys, packed
from tests.support.edge.centre import GROUP, Centre
from tollgate.edge.aggregates import DAY_S, HOUR_S, Aggregate, merge
from tollgate.edge.collector import Collector
from tollgate.edge.device import Device
from tollgate.edge.device_store import JOURNAL
from tollgate.edge.group import (
    Group,
    encode_group,
    open_objects,
    release,
    share_of,
)
from tollgate.edge.sync import (
    ACTIVE_FILE,
    FLEET,
    REPORT_FILE,
    Report,
    Sync,
    read_active,
)
from tollgate.errors import (
    ArgumentError,
    InputError,
    ObjectStoreError,
    SetupError,
    StoreError,
)
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.stream_entries import stream_key
from tollgate.repair.spool_segments import read_segment
from tollgate.repository.atomic import replace_file


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    """Make a centre."""
    return Centre(tmp_path)


def test_releases_reach_a_device_and_go_back_in_order(
    centre: Centre, tmp_path: Path
) -> None:
    """Release, release, rollback, release; a run follows each."""
    state = tmp_path / "state"
    with centre.sync(state) as sync:
        for change, wanted in (
            (lambda: centre.release(3), "fraud-3"),
            (lambda: centre.release(5), "fraud-5"),
            (centre.roll_back, "fraud-3"),
            (lambda: centre.release(4), "fraud-4"),
            (centre.roll_back, "fraud-3"),
        ):
            change()
            assert sync.pull()
            assert not sync.pull()
            assert centre.active(state) == wanted
            found = read_active(state, centre.keys.public)
            assert found is not None
            path, group, _ = found
            with Device.open(
                path,
                key=centre.keys.public,
                state=state,
                withdrawn=group.withdrawn,
            ) as device:
                assert device.manifest.release == wanted
    assert len(list((state / FLEET).glob("*.bundle"))) == 2
    with pytest.raises(InputError, match="has no earlier release"):
        centre.roll_back()
    with pytest.raises(
        InputError, match=r"has sequence 2, group tills has 3: it is ol"
    ):
        centre.release(2)


def test_a_canary_reaches_its_share_and_grows(centre: Centre) -> None:
    """The same devices each time, and no others; a pin wins."""
    devices = [f"till-{number}" for number in range(2_000)]
    centre.release(1)
    small = centre.release(2, canary=10)
    large = centre.release(2, canary=30)
    first, second = (
        {one for one in devices if group.bundle_for(one).sequence == 2}
        for group in (small, large)
    )
    assert first < second
    assert 150 < len(first) < 250
    assert 520 < len(second) < 680
    other = {one for one in devices if share_of(one, "another bundle") < 10}
    assert len(other & first) < 50
    pinned = centre.release(3, pin="till-7")
    assert pinned.bundle_for("till-7").sequence == 3
    assert {pinned.bundle_for(one).sequence for one in second - {"till-7"}} == {2}
    back = centre.roll_back()
    assert {back.bundle_for(one).sequence for one in devices} == {1, 3}
    last = centre.roll_back(pin="till-7")
    assert {last.bundle_for(one).sequence for one in devices} == {1}
    with pytest.raises(InputError, match="till-7 has no pin in group tills"):
        centre.roll_back(pin="till-7")


def test_a_withdrawn_canary_or_pin_goes_back_on_the_device(
    centre: Centre, tmp_path: Path
) -> None:
    """Also on a device that missed the change, and sees the next one."""
    state = tmp_path / "state"
    centre.release(1)
    centre.release(9, canary=100)
    with centre.sync(state) as sync:
        sync.pull()
        assert centre.active(state) == "fraud-9"
        centre.roll_back()
        centre.release(2)
        sync.pull()
        assert centre.active(state) == "fraud-2"
        centre.release(8, pin="till-1")
        sync.pull()
        assert centre.active(state) == "fraud-8"
        centre.roll_back(pin="till-1")
        sync.pull()
        assert centre.active(state) == "fraud-2"


def _older(centre: Centre, old: bytes) -> None:
    centre.group_file.write_bytes(old)


def _unordered(centre: Centre, old: bytes) -> None:
    del old
    group = centre.release(6)
    earlier = group.earlier[-1]
    forged = msgspec.structs.replace(group, number=9, bundle=earlier)
    centre.group_file.write_bytes(encode_group(forged, centre.keys.signs))


def _half_group(centre: Centre, old: bytes) -> None:
    del old
    content = centre.group_file.read_bytes()
    centre.group_file.write_bytes(content[: len(content) // 2])


def _changed_group(centre: Centre, old: bytes) -> None:
    del old
    content = centre.group_file.read_bytes().replace(b'number\\":2', b'number\\":7')
    assert b"7" in content
    centre.group_file.write_bytes(content)


def _foreign_group(centre: Centre, old: bytes) -> None:
    del old
    other = Keys(centre.folder, "other")
    group = centre.release(6)
    centre.group_file.write_bytes(encode_group(group, other.signs))


def _other_group(centre: Centre, old: bytes) -> None:
    del old
    group: Group = msgspec.structs.replace(centre.release(6), name="lanes")
    centre.group_file.write_bytes(encode_group(group, centre.keys.signs))


def _bundle_of(centre: Centre, sequence: int) -> Path:
    reference = centre.release(sequence).bundle
    return centre.store / GROUP / "bundles" / f"{reference.sha256}.bundle"


def _half_bundle(centre: Centre, old: bytes) -> None:
    del old
    path = _bundle_of(centre, 6)
    path.write_bytes(path.read_bytes()[:5_000])


def _tampered_bundle(centre: Centre, old: bytes) -> None:
    del old
    path = _bundle_of(centre, 6)
    content = bytearray(path.read_bytes())
    content[9_000] ^= 1
    path.write_bytes(content)


def _missing_bundle(centre: Centre, old: bytes) -> None:
    del old
    _bundle_of(centre, 6).unlink()


def _huge_group(centre: Centre, old: bytes) -> None:
    del old
    os.truncate(centre.group_file, (16 << 20) + 1)


def _huge_bundle(centre: Centre, old: bytes) -> None:
    del old
    os.truncate(_bundle_of(centre, 6), (1 << 30) + 1)  # no blocks on the disk


def _foreign_bundle(centre: Centre, old: bytes) -> None:
    """Name a bundle that another key signed in a group that the right key signed."""
    del old
    group = centre.release(6)
    content = centre.bundle(6, keys=Keys(centre.folder, "other")).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    (centre.store / GROUP / "bundles" / f"{digest}.bundle").write_bytes(content)
    bundle = msgspec.structs.replace(group.bundle, sha256=digest)
    named: Group = msgspec.structs.replace(group, bundle=bundle)
    centre.group_file.write_bytes(encode_group(named, centre.keys.signs))


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (_older, "has number 1, this device had 2: it is older"),
        (_unordered, "has sequence 3, this device has 5: it is older, and no rollback"),
        (_half_group, "is no signed group file, or only a part of one"),
        (_changed_group, "the signature does not fit"),
        (_foreign_group, "the signature does not fit: another key signed it"),
        (_other_group, "is of group lanes, not tills"),
        (_half_bundle, "is damaged, or only a part: it has another SHA-256"),
        (_tampered_bundle, "is damaged, or only a part: it has another SHA-256"),
        (_missing_bundle, "is missing: the group file names it"),
        (_huge_group, "has 16,777,217 bytes; at most 16,777,216 are taken"),
        (_huge_bundle, "has 1,073,741,825 bytes; at most 1,073,741,824 are taken"),
        (_foreign_bundle, "the signature does not fit: another key signed it"),
    ],
)
def test_what_is_refused_changes_nothing(
    attack: object, words: str, *, centre: Centre, tmp_path: Path
) -> None:
    """In one line, in the report, too; the next good file is taken."""
    state = tmp_path / "state"
    with centre.sync(state) as sync:
        centre.release(3)
        sync.pull()
        old = centre.group_file.read_bytes()
        centre.release(5)
        sync.pull()
        before = (state / FLEET / ACTIVE_FILE).read_bytes()
        good = centre.group_file.read_bytes()
        attack(centre, old)  # type: ignore[operator]
        with pytest.raises(InputError) as caught:
            sync.pull()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not sync.step()
        report = read_report(centre)
        assert words in report.refused
        assert report.release == "fraud-5"
        assert (state / FLEET / ACTIVE_FILE).read_bytes() == before
        assert not list((state / FLEET).glob(".*"))
        centre.group_file.write_bytes(good)
        centre.release(7)
        assert sync.step()
        assert centre.active(state) == "fraud-7"
        assert read_report(centre).refused == ""


def read_report(centre: Centre, device: str = "till-1") -> Report:
    """Read the report of a device in the store."""
    path = centre.store / GROUP / "devices" / device / REPORT_FILE
    return msgspec.json.decode(path.read_bytes(), type=Report)


def decide(device: Device, first: int, count: int) -> list[str]:
    """Decide purchases; return the decisions."""
    draw = np.random.default_rng(first)
    answer = device.decide(
        {
            "transaction_id": [f"t{first + row}" for row in range(count)],
            "customer_id": [f"c{one}" for one in draw.integers(0, 5, count)],
            "terminal_id": [f"m{one}" for one in draw.integers(0, 3, count)],
            "amount": (draw.integers(100, 300_000, count) / 100).tolist(),
            "event_time": [time.time_ns() // 1000] * count,
        }
    )
    return list(answer["decision"].tolist())


def test_records_are_pushed_once_the_store_is_back(
    centre: Centre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away, they stay; the counts by outcome are those of the answers."""
    state = tmp_path / "state"
    centre.release(1)
    answers: list[str] = []
    with centre.sync(state) as sync:
        assert sync.step()
        found = read_active(state, centre.keys.public)
        assert found is not None
        away = centre.store.with_name("away")
        for part in range(3):
            with Device.open(found[0], key=centre.keys.public, state=state) as device:
                answers += decide(device, part * 40, 40)
            if part == 1:
                centre.store.rename(away)
                centre.store.write_bytes(b"no folder")
                assert not sync.step()
                assert len(list((state / JOURNAL).rglob("*.spool"))) == 2
        centre.store.unlink()
        away.rename(centre.store)
        assert sync.step()
    assert not list(state.rglob("*.spool"))
    names = [one.name for one in centre.store.rglob("*.spool")]
    assert len(names) == 3
    report = read_report(centre)
    counts: dict[str, int] = {}
    for one in report.aggregates:
        assert one.release == "fraud-1"
        assert sum(one.us) == sum(one.outcomes.values())
        for word, number in one.outcomes.items():
            counts[word] = counts.get(word, 0) + number
    assert counts == {word: answers.count(word) for word in set(answers)}
    assert list(report.counted.values()) == [120]


def test_old_hours_become_days_and_old_days_end() -> None:
    """Two years of an hourly decision, with the same counts in a second release."""
    hours = 2 * 365 * 24
    kept: list[Aggregate] = []
    for begin in range(0, hours, 24):
        new = [
            Aggregate(
                begin_s=(begin + hour) * HOUR_S,
                length_s=HOUR_S,
                release=name,
                outcomes={"approve": 2, "review": 1},
                degraded=1,
                us=[1, 2],
            )
            for hour in range(24)
            for name in ("a", "b")
        ]
        kept = merge(kept, new)
    single = [one for one in kept if one.length_s == HOUR_S]
    days = [one for one in kept if one.length_s == DAY_S]
    assert [len(single), len(days)] == [2 * 168, 2 * 366]
    assert {one.begin_s for one in single} == {
        hour * HOUR_S for hour in range(hours - 168, hours)
    }
    last = hours // 24 - 7
    assert {one.begin_s for one in days} == {
        day * DAY_S for day in range(last - 366, last)
    }
    for one in days:
        assert one.outcomes == {"approve": 48, "review": 24}
        assert (one.degraded, one.us) == (24, [24, 48])


def test_a_release_that_finds_no_room_changes_nothing(
    centre: Centre, tmp_path: Path
) -> None:
    """Files of a store in a folder are replaced as a whole."""
    centre.release(1)
    before = {one: one.read_bytes() for one in centre.store.rglob("*") if one.is_file()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(ObjectStoreError, match="File too large"):
            release(
                open_objects(centre.url),
                GROUP,
                bundle=tmp_path / "1.bundle",
                key=centre.keys.signs,
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    after = {one: one.read_bytes() for one in centre.store.rglob("*") if one.is_file()}
    assert after == before


def test_records_stay_where_the_store_has_no_such_group(
    centre: Centre, tmp_path: Path
) -> None:
    """In a folder that is not mounted the centre would never find them."""
    state = tmp_path / "state"
    centre.release(1)
    with centre.sync(state) as sync:
        assert sync.step()
        with centre.device(state) as device:
            decide(device, 0, 3)
        away = centre.store.rename(centre.store.with_name("away"))
        centre.store.mkdir()
        assert not sync.step()
        assert not list(centre.store.iterdir())
        assert len(list(state.rglob("*.spool"))) == 1
        collector = Collector(centre.url, group=GROUP, journal_url="redis://127.0.0.1")
        with pytest.raises(InputError, match="there is no group tills"):
            collector.step()
        collector.close()
        centre.store.rmdir()
        away.rename(centre.store)
        assert sync.step()
    assert not list(state.rglob("*.spool"))


def test_a_bundle_that_a_disk_damaged_is_pulled_again(
    centre: Centre, tmp_path: Path
) -> None:
    """And so is one that is gone."""
    state = tmp_path / "state"
    centre.release(1)
    with centre.sync(state) as sync:
        assert sync.step()
    (path,) = (state / FLEET).glob("*.bundle")
    whole = path.read_bytes()
    path.write_bytes(whole[:5_000])
    with centre.sync(state) as sync:
        assert sync.step()
    assert path.read_bytes() == whole
    path.unlink()
    with centre.sync(state) as sync:
        assert sync.step()
    assert path.read_bytes() == whole


def test_a_device_moves_to_a_group_of_another_key(
    centre: Centre, tmp_path: Path
) -> None:
    """That is how a key is replaced; the numbers of a group are its own."""
    state = tmp_path / "state"
    for sequence in (1, 2):
        centre.release(sequence)
    with centre.sync(state) as sync:
        assert sync.step()
    other = Keys(tmp_path, "other")

    def step(group: str, keys: Keys) -> bool:
        with Sync(
            centre.url, group=group, device="till-1", folder=state, key=keys.public
        ) as sync:
            return sync.step()

    for name, keys in (("lanes", centre.keys), ("kiosks", other)):
        bundle = centre.bundle(2, keys=keys)
        release(open_objects(centre.url), name, bundle=bundle, key=keys.signs)
        assert step(GROUP, keys) == (keys is centre.keys)
        assert step(name, keys)
        found = read_active(state, keys.public)
        assert found is not None
        path, group, _ = found
        assert (group.name, group.number) == (name, 1)
        with Device.open(path, key=keys.public, state=state) as device:
            decide(device, 0, 1)


def test_a_damaged_file_of_the_active_bundle_is_written_again(
    centre: Centre, tmp_path: Path
) -> None:
    """At once, if the store answers; records wait until then."""
    state = tmp_path / "state"
    centre.release(1)
    with centre.sync(state) as sync:
        assert sync.step()
    with centre.device(state) as device:
        decide(device, 0, 3)
    active = state / FLEET / ACTIVE_FILE
    whole = active.read_bytes()
    active.write_bytes(whole[:50])
    group = centre.group_file.rename(centre.group_file.with_name("away"))
    with centre.sync(state) as sync:
        assert not sync.step()
        assert len(list(state.rglob("*.spool"))) == 1
    group.rename(centre.group_file)
    with centre.sync(state) as sync:
        assert sync.step()
    assert active.read_bytes() == whole
    assert sum(sum(one.us) for one in read_report(centre).aggregates) == 3


def test_a_copy_of_a_folder_is_no_other_device(centre: Centre, tmp_path: Path) -> None:
    """Both would number their records alike, and the centre keeps one of each."""
    state, copy = tmp_path / "state", tmp_path / "copy"
    centre.release(1)
    with centre.sync(state) as sync:
        assert sync.step()
    shutil.copytree(state, copy)
    with pytest.raises(InputError, match="is of device till-1, not till-2: two dev"):
        centre.sync(copy, "till-2")
    (copy / FLEET / REPORT_FILE).unlink()
    with centre.sync(copy, "till-2") as sync:
        assert sync.step()


def test_a_push_that_fails_waits_longer_each_time(
    centre: Centre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 s, 10 s, up to 10 minutes; at once when the store answers again."""
    now = [1_000.0]
    monkeypatch.setattr("tollgate.edge.sync.time.monotonic", lambda: now[0])
    centre.release(1)
    devices = centre.store / GROUP / "devices"
    devices.write_bytes(b"no folder")
    tries = []
    with centre.sync(tmp_path / "state") as sync:
        push = sync.push
        monkeypatch.setattr(sync, "push", lambda: tries.append(now[0]) or push())
        for _ in range(4_000):
            assert not sync.step()
            now[0] += 1
        pauses = [second - first for first, second in pairwise(tries)]
        assert pauses == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600, 600, 600]
        devices.unlink()
        away = centre.store.rename(centre.store.with_name("away"))
        centre.store.write_bytes(b"no folder")
        assert not sync.step()
        centre.store.unlink()
        away.rename(centre.store)
        assert sync.step()


def test_a_segment_that_is_written_again_is_pushed_whole(
    centre: Centre, tmp_path: Path
) -> None:
    """
    A killed device seals chunks again, under the same name and with more records.

    The centre has both, and counts no record twice.
    """
    state = tmp_path / "state"
    centre.release(1)
    with centre.sync(state) as sync:
        sync.step()
        found = read_active(state, centre.keys.public)
        assert found is not None
        with Device.open(found[0], key=centre.keys.public, state=state) as device:
            decide(device, 0, 10)
            store = device._store
            store.seal()
            (first,) = (state / JOURNAL).rglob("*.spool")
            assert sync.step()
            with store.lock:
                store._sealed = 0  # as if the kill came before it was noted
            decide(device, 10, 5)
        (second,) = (state / JOURNAL).rglob("*.spool")
        assert second == first
        assert sync.step()
    assert len(list(centre.store.rglob("*.spool"))) == 2
    assert list(read_report(centre).counted.values()) == [15]
    total = sum(sum(one.us) for one in read_report(centre).aggregates)
    assert total == 15


def test_one_process_syncs_a_folder(centre: Centre, tmp_path: Path) -> None:
    """And names are checked."""
    with (
        centre.sync(tmp_path / "state"),
        pytest.raises(SetupError, match="is in use"),
    ):
        centre.sync(tmp_path / "state")
    with pytest.raises(ArgumentError, match="'a/b' is not 1 to 64 letters"):
        centre.sync(tmp_path / "state", "a/b")
    centre.release(1)
    with pytest.raises(InputError, match="device's name: 'a b' is not 1 to 64 letters"):
        centre.release(2, pin="a b")
    assert len(list((centre.store / GROUP / "bundles").iterdir())) == 1


def test_a_group_of_another_product_is_refused(centre: Centre, tmp_path: Path) -> None:
    """By the centre, and by a device that has a product."""
    centre.release(1)
    sensors = packed(centre.keys, tmp_path, "sensors")
    objects = open_objects(centre.url)
    with pytest.raises(InputError, match="is of sensors, group tills is of fraud"):
        release(objects, GROUP, bundle=sensors, key=centre.keys.signs)
    with centre.sync(tmp_path / "state") as sync:
        sync.pull()
        centre.group_file.unlink()
        for _ in range(2):
            release(objects, GROUP, bundle=sensors, key=centre.keys.signs)
        with pytest.raises(InputError, match="is of sensors, not fraud"):
            sync.pull()


@pytest.mark.parametrize("damage", [False, True])
def test_records_reach_the_stream_over_s3(
    damage: bool,
    *,
    centre: Centre,
    tmp_path: Path,
    object_store: Any,
    store_url: str,
    redis_client: redis.Redis,
) -> None:
    """Each record once; a damaged segment stays in the store, and the others go on."""
    bucket = f"edge-{damage}".lower()
    object_store.files().mkdir(bucket)
    url, state = f"s3://{bucket}/fleet", tmp_path / "state"
    objects = open_objects(url)
    for sequence in (1, 2):
        release(objects, GROUP, bundle=centre.bundle(sequence), key=centre.keys.signs)
    keys = centre.keys
    with Sync(url, group=GROUP, device="a", folder=state, key=keys.public) as sync:
        assert sync.step()
        assert centre.active(state) == "fraud-2"
        path = next((state / FLEET).glob("*.bundle"))
        for part in range(2):
            with Device.open(path, key=keys.public, state=state) as device:
                decide(device, part * 20, 20)
            assert sync.step()
    if damage:
        files = object_store.files()
        name = min(files.find(f"{bucket}/fleet/{GROUP}/devices/a/journal"))
        files.pipe_file(name, files.cat_file(name)[:-5])
    collector = Collector(url, group=GROUP, journal_url=store_url)
    assert collector.step() == 2 - damage
    assert collector.step() == 0
    collector.close()
    entries = redis_client.xrange(stream_key("fraud"))
    found = [
        one
        for _, fields in entries
        for one in decode_chunk(fields[b"c"]).transaction_id
    ]
    assert found == [b"t%d" % number for number in range(20 * damage, 40)]
    left = objects.files(f"{GROUP}/devices", deep=True)
    assert sum(one.endswith(".spool") for one in left) == damage


def test_a_push_frees_a_disk_that_is_full_of_records(
    centre: Centre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that starts then can write nothing before; no count is lost."""
    state = tmp_path / "state"
    centre.release(1)
    with centre.sync(state) as sync:
        sync.step()
    for part in range(2):
        with centre.device(state) as device:
            decide(device, part * 40, 40)

    def require_room() -> None:
        if list(state.rglob("*.spool")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def replace(path: Path, content: bytes, *, mode: int) -> None:
        require_room()
        replace_file(path, content, mode=mode)

    class Folder(tempfile.TemporaryDirectory[str]):
        def __init__(self, **options: Any) -> None:
            require_room()
            super().__init__(**options)

    monkeypatch.setattr("tollgate.edge.sync.replace_file", replace)
    monkeypatch.setattr("tollgate.edge.sync.tempfile.TemporaryDirectory", Folder)
    with centre.sync(state) as sync:
        assert not sync.step()  # the bundle could not be activated
    assert not list(state.rglob("*.spool"))
    assert len(list(centre.store.rglob("*.spool"))) == 2
    assert "cannot be written: No space left" in read_report(centre).refused
    with centre.sync(state) as sync:
        assert sync.step()
    report = read_report(centre)
    assert sum(sum(one.us) for one in report.aggregates) == 80
    assert report.refused == ""


def test_a_segment_that_a_disk_damaged_stays_in_the_store(
    centre: Centre, tmp_path: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """It is pushed as it is, and its records after the damage are not dropped."""
    state = tmp_path / "state"
    centre.release(1)
    with centre.sync(state) as sync:
        assert sync.step()
        for part in range(2):
            with centre.device(state) as device:
                for number in range(4):
                    decide(device, part * 40 + number * 10, 10)
        damaged = min((state / JOURNAL).rglob("*.spool"))
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
        assert sync.step()
    collector = Collector(centre.url, group=GROUP, journal_url=store_url)
    assert collector.step() == 1
    collector.close()
    (left,) = centre.store.rglob("*.spool")
    assert left.read_bytes() == content
    assert redis_client.xlen(stream_key("fraud")) > 0


def test_counts_outlive_records_that_found_no_room(
    centre: Centre, tmp_path: Path
) -> None:
    """The spool is full while the store is away: the oldest segments go."""
    state = tmp_path / "state"
    centre.release(1)
    with centre.sync(state) as sync:
        sync.step()
        found = read_active(state, centre.keys.public)
        assert found is not None
        away = centre.store.rename(centre.store.with_name("away"))
        centre.store.write_bytes(b"no folder")
        for part in range(6):
            with Device.open(
                found[0], key=centre.keys.public, state=state, spool_bytes=20_000
            ) as device:
                decide(device, part * 40, 40)
            sync.aggregate()
        centre.store.unlink()
        away.rename(centre.store)
        assert sync.step()
    report = read_report(centre)
    assert sum(sum(one.us) for one in report.aggregates) == 240
    numbers = sorted(
        number
        for path in centre.store.rglob("*.spool")
        for raw in read_segment(path, path.read_bytes()).events
        for one in [decode_chunk(raw)]
        for number in range(one.first_sequence, one.first_sequence + len(one))
    )
    assert numbers == list(range(numbers[0], 240))
    assert 0 < numbers[0] < 200


def test_a_segment_stays_in_the_store_while_the_stream_is_away(
    centre: Centre, tmp_path: Path
) -> None:
    """Collecting fails in one line, and the device's records stay."""
    state = tmp_path / "state"
    centre.release(1)
    with centre.sync(state) as sync:
        sync.step()
        with centre.device(state) as device:
            decide(device, 0, 5)
        sync.step()
    before = list(centre.store.rglob("*.spool"))
    collector = Collector(centre.url, group=GROUP, journal_url="redis://127.0.0.1:1/0")
    with pytest.raises(StoreError, match="the journal's stream of fraud is full, or"):
        collector.step()
    collector.close()
    assert list(centre.store.rglob("*.spool")) == before
    assert len(before) == 1
