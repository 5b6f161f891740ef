"""What a hook computes, offline: against hand arithmetic, alone and among others."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tollgate.errors import HookError
from tollgate.features.assemble import assemble
from tollgate.features.hook.hook_proof import prove
from tollgate.features.hook.hook_run import HookColumns, HookGuard, run_hook
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import history_of
from tollgate.schema import MISSING, Degraded

Hooked = Callable[..., Path]
LAST = '    return {"km": km, "risk": RISK[request["channel"]]}\n'
KM, RISK, PER_KM = 4, 5, 6  # columns


def ending(lines: str) -> tuple[str, str]:
    """Put lines before the hook's last one."""
    return LAST, f"    {lines}\n{LAST}"


def given(rows: int, **changes: list[float]) -> HookColumns:
    """Make columns of the hook: everything 0, or as given."""
    columns = {
        name: np.array(changes.get(name, [0.0] * rows))
        for name in ("lat", "lon", "lat_was", "lon_was")
    }
    codes = np.array(changes.get("channel", [0] * rows), np.int64)
    return HookColumns(
        rows=rows,
        request={"lat": columns["lat"], "lon": columns["lon"], "channel": codes},
        features={"lat_was": columns["lat_was"], "lon_was": columns["lon_was"]},
    )


def test_offline_is_hand_arithmetic(hooked: Hooked) -> None:
    """
    A quarter of the globe northwards; nothing before; a place not sent; a new word.

    A default that stands for a feature is NaN to the hook, and what it says NaN of is
    the default of its feature, and of what is made of that.
    """
    spec = load_spec(hooked())
    frame = pl.DataFrame(
        {
            "transaction_id": ["1", "2", "3", "4"],
            "event_time": [1_700_000_000_000_000 + at for at in range(4)],
            "customer_id": ["a", "a", "a", "b"],
            "terminal_id": ["t"] * 4,
            "amount": [10.0, 20.0, 30.0, 40.0],
            "lat": [0.0, 90.0, None, 1.0],
            "lon": [10.0, 10.0, 10.0, 10.0],
            "channel": ["web", "app", "", "fax"],
        }
    )
    vectors = build(spec, history_of(frame, spec=spec, source="drawn"))
    quarter = math.pi / 2 * 6371.0
    np.testing.assert_allclose(vectors[:, KM], [-1, quarter, -1, -1], rtol=1e-12)
    # app is 0.9, cut to 0.8; missing is 0.75; unseen is NaN, and so its default.
    assert vectors[:, RISK].tolist() == [0.25, 0.8, 0.75, 0.5]
    np.testing.assert_allclose(vectors[:, PER_KM], [-2, 20 / quarter, -2, -2])


def test_the_hook_is_given_what_the_page_says(hooked: Hooked) -> None:
    """Numbers in their decimals, money, µs and codes, of [N], none to be written to."""
    path = hooked(
        ("(\n        np.radians(request", "(\n        request['amount'] + (request"),
        (LAST, '    at = request["event_time"] % 7 / 2\n' + LAST.replace("km,", "at,")),
    )
    spec = load_spec(path)
    seen: list[HookColumns] = []

    def spy(hook: object, columns: HookColumns) -> dict[str, np.ndarray]:
        seen.append(columns)
        return run_hook(spec.hook, columns)  # type: ignore[arg-type]

    vectors = assemble(
        spec,
        sums=(),
        cents=np.array([150, 7]),
        time_us=np.array([8, 16]),
        fields={"lat": np.array([12_500, MISSING])},
        **{"run": spy},
    )
    assert vectors[:, KM].tolist() == [0.5, 1.0]
    (columns,) = seen
    assert columns.request["amount"].tolist() == [1.5, 0.07]
    np.testing.assert_array_equal(columns.request["lat"], [1.25, np.nan])
    assert np.isnan(columns.request["lon"]).all()
    assert columns.request["channel"].tolist() == [-1, -1]
    assert np.isnan(columns.features["lat_was"]).all()  # its default is 5
    kinds = {name: one.dtype.name for name, one in columns.request.items()}
    assert kinds == {
        "amount": "float64",
        "lat": "float64",
        "lon": "float64",
        "event_time": "int64",
        "channel": "int64",
    }
    everything = (*columns.request.values(), *columns.features.values())
    assert not any(one.flags.writeable for one in everything)


def test_infinity_is_cut_to_what_is_served(hooked: Hooked) -> None:
    """Float32's largest number, as of a ratio."""
    spec = load_spec(hooked(ending("km = km / 0.0 + 1 / np.zeros(len(km))")))
    at = np.array([0])
    lat = {"lat": at, "lon": at}
    found = assemble(spec, cents=at, time_us=at, sums=(), fields=lat)
    assert found[0, KM] == -1  # it was not seen before: NaN
    spec = load_spec(hooked(ending("km = 1 / np.zeros(len(km))")))
    found = assemble(spec, cents=at, time_us=at, sums=(), fields=lat)
    assert found[0, KM] == float(np.finfo(np.float32).max)


def test_a_sound_hook_is_proven(hooked: Hooked) -> None:
    """The same hash of all it gave, again and again."""
    spec = load_spec(hooked())
    assert spec.hook is not None
    assert prove(spec, spec.hook) == prove(spec, spec.hook)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("km = km - km.max()", "line 23: 'km' of a row was"),
        ("km = np.cumsum(km)", "line 23: 'km' of a row was"),
        (
            "km = np.where(np.isnan(km), np.nanmean(km), km)",
            "in a batch of 3, not 256,",
        ),
        ("km = np.sort(km)", "it may hang on the columns of its own row alone"),
        ("km = km * len(km)", "in a batch of 3, not 256,"),
        ("km = km[0]", "line 23: 'km' is a float64, not an array"),
        ("km = km[:1]", "line 23: 'km' has shape (1,) for 256 rows, not (256,)"),
        ("km = km.reshape(-1, 1)", "line 23: 'km' has shape (256, 1) for 256 rows"),
        ("km = km > 3", "line 23: 'km' is bool, not float64: .astype(np.float64)"),
        ("km = km.astype(np.float32)", "line 23: 'km' is float32, not float64"),
        ("km = list(km)", "line 23: 'km' is a list, not an array"),
        ("km = km if km > 3 else KM", "line 22: ValueError: The truth value of an"),
        ("km = RISK[km.astype(np.int64)]", "line 22: IndexError: index"),
        ('request["lat"][0] = 3.0', "line 22: ValueError: assignment destination is"),
        ('np.exp(km, out=request["lat"])', "line 22: ValueError: output array is"),
        ("RISK[0] = km[0]", "line 22: ValueError: assignment destination is read-only"),
        ("km.nothing()", "line 22: AttributeError: 'numpy.ndarray' object has no"),
        ("km = 1 // 0", "line 22: ZeroDivisionError: integer division or modulo by"),
    ],
)
def test_what_hangs_on_more_than_its_row_is_refused_when_it_runs(
    hooked: Hooked, lines: str, words: str
) -> None:
    """Made-up columns of many kinds show it; the message names line and value."""
    spec = load_spec(hooked(ending(lines)))
    assert spec.hook is not None
    with pytest.raises(HookError) as caught:
        prove(spec, spec.hook)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{spec.hook.path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("KM = 6371.0", "KM = 6371.0 / 0", "line 5: ZeroDivisionError: float divi"),
        ("KM = 6371.0", "KM = dict(a=1)", "KM: is a dict, which calls could change"),
        ("KM = 6371.0", "KM = (1, list())", "KM: is a list, which calls could"),
    ],
)
def test_constants_of_a_hook_are_constant(
    hooked: Hooked, old: str, new: str, words: str
) -> None:
    """What could keep something between calls is refused when the file first runs."""
    spec = load_spec(hooked((old, new)))
    assert spec.hook is not None
    with pytest.raises(HookError) as caught:
        prove(spec, spec.hook)
    assert words in str(caught.value)


def test_a_history_shows_what_made_up_columns_do_not(hooked: Hooked) -> None:
    """Rows of the history are computed alone once more when features are built."""
    rare = "km = np.where((request['lat'] == 12.3456).any(), km * 0 + len(km), km)"
    spec = load_spec(hooked(ending(rare)))
    assert spec.hook is not None
    prove(spec, spec.hook)  # nothing it drew was there
    frame = pl.DataFrame(
        {
            "transaction_id": [str(at) for at in range(40)],
            "event_time": [1_700_000_000_000_000 + at for at in range(40)],
            "customer_id": ["a"] * 40,
            "terminal_id": ["t"] * 40,
            "amount": [10.0] * 40,
            "lat": [12.3456] * 40,
            "lon": [10.0] * 40,
            "channel": ["web"] * 40,
        }
    )
    with pytest.raises(HookError, match=r"km of purchase 2 is 1\.0 alone and 40\.0"):
        build(spec, history_of(frame, spec=spec, source="drawn"))


FRAGILE = "km = RISK[np.where(km < 2000, 0, 7).astype(np.int64)] + km"


def guarded(spec: FeatureSpec, columns: HookColumns) -> tuple[list[float], list[int]]:
    """Run the hook as for those who wait: km of each row, and its degraded bits."""
    guard = HookGuard(spec)
    assert spec.hook is not None
    made = guard.run(spec.hook, columns)
    return made["km"].tolist(), guard.bits.tolist()


def test_a_row_that_it_fails_for_costs_no_other_one_its_values(hooked: Hooked) -> None:
    """The others have, to the bit, what they have without that row; it is marked."""
    spec = load_spec(hooked(ending(FRAGILE)))
    km, bits = guarded(spec, given(3, lat=[1.0, 80.0, 2.0]))
    alone, none = guarded(spec, given(2, lat=[1.0, 2.0]))
    assert math.isnan(km[1])
    assert [km[0], km[2]] == alone
    assert (bits, none) == ([0, Degraded.HOOK_FAILED, 0], [0, 0])


def test_an_essential_feature_that_failed_is_missing(hooked: Hooked) -> None:
    """By itself, or because it is made of one that failed; else that bit is not set."""
    for essential in ("[amount, km]", "hook: km"):
        path = hooked(
            ending(FRAGILE), spec=(essential, f"{essential}, essential: true")
        )
        _, bits = guarded(load_spec(path), given(1, lat=[80.0]))
        assert bits == [Degraded.HOOK_FAILED | Degraded.ESSENTIAL_MISSING]


def test_a_failure_is_logged_once_without_the_row(
    hooked: Hooked, caplog: pytest.LogCaptureFixture
) -> None:
    """One line when it begins, one when it has gone well for a thousand batches."""
    spec = load_spec(hooked(ending(FRAGILE)))
    guard = HookGuard(spec)
    assert spec.hook is not None
    good, bad = given(1), given(1, lat=[80.0])
    with caplog.at_level(logging.INFO):
        for batch in (good, bad, bad, *[good] * 999, bad, *[good] * 1_001, bad):
            guard.run(spec.hook, batch)
    said = "hook.py line 22: IndexError: its features are their defaults"
    assert caplog.messages == [said, "hook.py works again", said]


def test_what_is_sound_passes(hooked: Hooked) -> None:
    """Loops over range, helper functions, lists, dicts and columns of one's own."""
    lines = (
        "kinds = {1: [0.5, 0.25]}\n"
        "    both = np.stack([km, km * kinds[1][0]])[:, np.newaxis, :].max(axis=0)[0]\n"
        "    for at in range(3):\n"
        "        both[both > 9] -= 1.0 if at else math.sqrt(2)\n"
        "    km = both"
    )
    spec = load_spec(
        hooked(("import numpy", "import math\nimport numpy"), ending(lines))
    )
    assert spec.hook is not None
    prove(spec, spec.hook)


def test_no_rows_are_no_call(hooked: Hooked) -> None:
    """An empty history has no vectors, and a hook need not think of it."""
    spec = load_spec(hooked(ending("km = km + km[0]")))
    nothing = np.zeros(0, np.int64)
    found = assemble(spec, sums=(), cents=nothing, time_us=nothing)
    assert found.shape == (0, 7)


def test_nothing_is_written_next_to_a_hook(hooked: Hooked) -> None:
    """No bytecode: what a release names by hash stays as it is."""
    path = hooked()
    spec = load_spec(path)
    assert spec.hook is not None
    prove(spec, spec.hook)
    assert sorted(one.name for one in path.parent.iterdir()) == [
        "features.yaml",
        "hook.py",
    ]
