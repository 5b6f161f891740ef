"""A hook is refused by its text: file, line and what is wrong, before it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tollgate.errors import HookError, SpecError
from tollgate.features.spec.description import compare, feature_text, needed_entities
from tollgate.features.spec.feature_spec import load_spec

Hooked = Callable[..., Path]
LAST = '    return {"km": km, "risk": RISK[request["channel"]]}\n'
BODY = "    km = haversine(\n"


def refusal(path: Path) -> str:
    """Tell why a hook is refused, without its folder."""
    with pytest.raises(HookError) as caught:
        load_spec(path)
    text = str(caught.value)
    assert text.startswith(f"{path.with_name('hook.py')}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path.with_name('hook.py')}: ")


def test_its_columns_are_linked(hooked: Hooked) -> None:
    """What it reads by name and place, what it gives; all of it hangs on its inputs."""
    spec = load_spec(hooked())
    hook = spec.hook
    assert hook is not None
    assert hook.request == ("lat", "lon", "channel")
    assert hook.features == (2, 3)
    assert hook.columns == ("km", "risk")
    km, per_km = spec.features[4], spec.features[6]
    assert (km.hook, km.inputs, km.default) == ("km", (2, 3), -1)
    assert per_km.inputs == (0, 4)
    stored = [bool(needed_entities(one, spec)) for one in spec.features]
    assert stored == [False, *[True] * 6]
    assert feature_text(spec.features[5], spec) == (
        "risk of hook.py, which reads lat, lon, channel, lat_was, lon_was; "
        "within 0 … 0.8"
    )


def test_its_text_is_part_of_the_hash_and_of_the_difference(hooked: Hooked) -> None:
    """Another byte is another vector of the same state, also for what depends on it."""
    old = load_spec(hooked())
    new = load_spec(hooked(("6371.0", "6371.01")))
    assert old.state_hash == new.state_hash
    assert old.spec_hash != new.spec_hash
    found = compare(old, new)
    assert found.same_state
    assert not found.same_vector
    assert [(one.feature, one.kind) for one in found.changes] == [
        ("km", "vector"),
        ("risk", "vector"),
    ]
    assert "code: " in found.changes[0].details[0]


def test_the_hash_of_a_file_without_a_hook_stays(spec_path: Path) -> None:
    """The fraud product's, as its first release had it before there were hooks."""
    spec = load_spec(spec_path)
    assert spec.spec_hash == 0xC36F8242C6FA0068
    assert spec.hook is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("import numpy as np", "import time", "line 3: import time: a hook has numpy"),
        ("import numpy as np", "import numpy.random as np", "line 3: import numpy.r"),
        ("KM = ", "from os import path\nKM = ", "line 5: import from os: a hook has"),
        ("KM = ", "from numpy import random\nKM = ", "line 5: numpy.random: a hook"),
        ("KM = ", "from numpy import *\nKM = ", "line 5: import *: name what is used"),
        ("KM = ", "from math import nothing\nKM = ", "line 5: math has no nothing"),
        (BODY, f"    import numpy\n{BODY}", "line 16: imports and functions stand"),
        (BODY, f"    open('x')\n{BODY}", "line 16: open is not there: a hook has"),
        (BODY, f"    eval('1')\n{BODY}", "line 16: eval is not there"),
        (BODY, f"    exec('1')\n{BODY}", "line 16: exec is not there"),
        (BODY, f"    __import__('os')\n{BODY}", "line 16: __import__ is not there"),
        (BODY, f"    getattr(np, 'load')\n{BODY}", "line 16: getattr is not there"),
        (BODY, f"    print(1)\n{BODY}", "line 16: print is not there"),
        (BODY, f"    np.random.rand()\n{BODY}", "line 16: numpy.random: a hook must"),
        (BODY, f"    np.linalg.norm(KM)\n{BODY}", "line 16: numpy.linalg: of numpy"),
        (BODY, f"    np.load('x')\n{BODY}", "line 16: numpy.load reads or writes"),
        (BODY, f"    np.empty(3)\n{BODY}", "line 16: numpy.empty holds whatever"),
        (BODY, f"    np.dot(KM, KM)\n{BODY}", "line 16: numpy.dot has last bits that"),
        (BODY, f"    RISK @ RISK\n{BODY}", "line 16: @ has last bits that hang on"),
        (BODY, f"    np.nothing(3)\n{BODY}", "line 16: numpy has no nothing"),
        (BODY, f"    n = np\n{BODY}", "line 16: np is a module: take something of it"),
        (BODY, f"    np = 3\n{BODY}", "line 16: np is the name of a module"),
        (BODY, f"    np.pi = 3\n{BODY}", "line 16: .pi could keep something"),
        (BODY, f"    hook.seen = 3\n{BODY}", "line 16: .seen could keep something"),
        (BODY, f"    KM.__class__\n{BODY}", "line 16: .__class__ is out of a hook's"),
        (BODY, f"    RISK.tofile('x')\n{BODY}", "line 16: .tofile is out of a hook's"),
        (BODY, f"    RISK.setflags(1)\n{BODY}", "line 16: .setflags is out of"),
        (BODY, f"    np.datetime64('now')\n{BODY}", "line 16: 'now' reads the clock"),
        (BODY, f"    global KM\n{BODY}", "line 16: global keeps something from one"),
        (BODY, f"    while KM:\n        pass\n{BODY}", "line 16: nobody can see that"),
        (BODY, f"    {{1, 2}}\n{BODY}", "line 16: the order of a set hangs on"),
        (BODY, f"    assert KM\n{BODY}", "line 16: a hook has an answer for every"),
        (BODY, f"    with KM:\n        pass\n{BODY}", "line 16: a hook needs no with"),
        (BODY, f"    f'{{KM}}'\n{BODY}", "line 16: a hook makes numbers"),
        (BODY, f"    async def f():\n        pass\n{BODY}", "a hook has no AsyncFunc"),
        (BODY, f"    def f():\n        pass\n{BODY}", "line 16: imports and functions"),
        (BODY, "    km = haversine(\n(", "line 16: '(' was never closed"),
        ("KM = 6371.0", "SEEN = {}", "line 5: this could keep something from one"),
        ("KM = 6371.0", "if True:\n    KM = 3", "line 5: only imports, constants and"),
        ("KM = 6371.0", "class KM:\n    pass", "line 5: a class keeps state"),
        ("lon_was):", "lon_was, seen=[]):", "line 9: a default could keep something"),
        ("def hav", "@np.vectorize\ndef hav", "line 10: a hook has no decorators"),
        ("hook(request", "hooks(request", "line 1: has not one def hook(request, f"),
        ("hook(request", "hook(columns", "line 15: must be def hook(request, featu"),
        (BODY, f"    request.get(1)\n{BODY}", "line 16: request is for taking columns"),
        (BODY, f"    request['x'] = 1\n{BODY}", "line 16: request is for taking col"),
        (BODY, f"    features[KM]\n{BODY}", "line 16: features is for taking columns"),
        ('request["lat"]', 'request["alt"]', "line 17: 'alt' is no column of the req"),
        ('request["lat"]', 'request["customer_id"]', "'customer_id' is no column"),
        ('features["lat_was"]', 'features["km"]', "line 19: 'km' is no feature before"),
        ('features["lat_was"]', 'features["per_km"]', "'per_km' is no feature before"),
        (
            BODY,
            f"    if KM:\n        return {{}}\n{BODY}",
            "hook ends with its one ret",
        ),
        (LAST, "    return km\n", 'line 22: must return {"a_name": a_column, …}'),
        (LAST, "    return {KM: km}\n", "line 22: each key of what is returned is"),
        ('"risk": RISK', '"km": RISK', "line 22: 'km' is returned twice"),
        ('{"km"', '{"new": km, "km"', "line 22: 'new' is returned, and no feature"),
    ],
)
def test_what_a_hook_may_not_have_is_refused_by_line(
    hooked: Hooked, old: str, new: str, words: str
) -> None:
    """One line with the file, the line and the reason."""
    assert words in refusal(hooked((old, new)))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("hook: hook.py\n", "hook: ../other.py\n", "hook: '../other.py' is not hook"),
        ("hook: hook.py\n", "", "features.km.hook: takes a column of a hook, and"),
        ("hook: km,", "hook: miles,", "features.km.hook: 'miles' is none of what"),
        ("hook: km,", "hook: km, field: amount,", "features.km: needs exactly one of"),
        ("[web, app]}", "[web, app], use: policy}", "channel: is for the policy, and"),
        ("hook: km, default", "hook: km, window: 1d, default", "km.window: only an"),
    ],
)
def test_what_does_not_fit_the_file_is_refused(
    hooked: Hooked, old: str, new: str, words: str
) -> None:
    """One line with the key of features.yaml."""
    path = hooked(spec=(old, new))
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_hook_that_cannot_be_read_is_named(hooked: Hooked) -> None:
    """Not there, too large, or no text."""
    path = hooked()
    file = path.with_name("hook.py")
    file.write_bytes(b"# \n# \xff\n")
    assert refusal(path) == "line 2: is not UTF-8"
    file.write_bytes(b"#" * 70_000)
    assert refusal(path) == "has 70000 bytes, 65536 are allowed"
    file.unlink()
    assert refusal(path) == "cannot be read: No such file or directory"
