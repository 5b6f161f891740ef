"""A hook is tried in processes of its own before a release may name it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tollgate.audit.releases.archive import read_release_files
from tollgate.audit.releases.archived_release import spec_of
from tollgate.audit.releases.past_release import ReleaseFiles, open_files
from tollgate.errors import HookError
from tollgate.features.spec.feature_spec import load_spec
from tollgate.repository.lint.product_rules import product_findings
from tollgate.repository.models.hook_trial import BUDGET_US, prove_hook
from tollgate.repository.releases.activation import activate, compose_next, propose
from tollgate.repository.releases.release_file import read_release, spec_hash_text
from tollgate.repository.snapshot import RepositorySnapshot

Hooked = Callable[..., Path]
Edit = Callable[[str, str, str], None]
LAST = '    return {"km": km, "risk": RISK[request["channel"]]}\n'
FEATURES = "fraud_features/1/features.yaml"
SOUND = 'def hook(request, features):\n    return {"money": request["amount"] * 1.0}\n'
ONES = {"fraud_features": 1, "fraud_model": 1, "fraud_decision": 1}


def refusal(path: Path, *, timeout_s: float = 30.0) -> str:
    """Tell why a hook failed its trial."""
    with pytest.raises(HookError) as caught:
        prove_hook(path, timeout_s=timeout_s)
    return str(caught.value).removeprefix(f"{path.with_name('hook.py')}: ")


def test_a_sound_hook_passes_and_tells_its_time(
    hooked: Hooked, spec_path: Path
) -> None:
    """Some µs; None for a file that has no hook."""
    took_us = prove_hook(hooked())
    assert took_us is not None
    assert 0 < took_us < BUDGET_US
    assert prove_hook(spec_path) is None


def test_a_hook_that_is_slow_is_refused(hooked: Hooked) -> None:
    """It counts to a million: ten times the budget on a quick machine of 2026."""
    slow = "    for at in range(1_000_000):\n        pass\n"
    text = refusal(hooked((LAST, slow + LAST)))
    assert text.startswith("takes ")
    assert f"µs for 32 rows, {BUDGET_US:.0f} are allowed" in text


def test_a_hook_without_an_end_is_ended(hooked: Hooked) -> None:
    """It runs apart from whoever tries it, and no longer than it may."""
    endless = "    for at in range(10 ** 15):\n        pass\n"
    text = refusal(hooked((LAST, endless + LAST)), timeout_s=3.0)
    assert text == "did not end within 3 s on a few thousand rows"


def test_what_hangs_on_the_process_is_refused(hooked: Hooked) -> None:
    """The order of a set is another one with every seed of Python's hashes."""
    order = (
        '    words = ["a", "b", "c", "d", "e", "f", "g", "h"]\n'
        "    keys = dict(zip(words, words)).keys()\n"
        "    first = [words.index(one) for one in keys | ()][0]\n"
        "    km = km + first\n"
    )
    text = refusal(hooked((LAST, order + LAST)))
    assert text == (
        "gives other numbers in another process: it hangs on more than a row"
    )


def test_what_is_wrong_in_the_trial_is_told_by_line(hooked: Hooked) -> None:
    """As if it had run here."""
    text = refusal(hooked((LAST, f"    km = km - km[0]\n{LAST}")))
    assert text.startswith("line 23: 'km' of a row was ")


@pytest.fixture
def released(repository: Path, edit: Edit) -> Callable[[str], Path]:
    """The fraud product with its amount out of a hook, and its model made for that."""

    def write(hook: str) -> Path:
        path = repository / FEATURES
        path.with_name("hook.py").write_text(hook)
        edit(FEATURES, "field: amount", "hook: money")
        path.write_text(f"{path.read_text()}hook: hook.py\n")
        spec = load_spec(path)
        record = repository / "fraud_model/1/artifact.json"
        told = json.loads(record.read_text())
        told["spec_hash"] = spec_hash_text(spec.spec_hash)
        record.write_text(json.dumps(told))
        return repository

    return write


def test_a_release_needs_a_hook_that_passes(released: Callable[[str], Path]) -> None:
    """What its text does not show stops it when it is to be activated or proposed."""
    repository = released(
        "def hook(request, features):\n"
        '    return {"money": request["amount"] - request["amount"].max()}\n'
    )
    before = read_release(repository, product="fraud")
    release = compose_next(
        RepositorySnapshot(repository),
        product="fraud",
        versions=ONES,
        actor="ana",
        reason="a hook",
    )
    for do in (activate, propose):
        with pytest.raises(HookError, match="line 2: 'money' of a row was"):
            do(
                RepositorySnapshot(repository),
                release,
                action="activate",
                actor="ana",
                reason="a hook",
            )
    assert read_release(repository, product="fraud") == before


def test_a_hook_is_part_of_what_a_release_pins(
    released: Callable[[str], Path],
) -> None:
    """Its hash is in the release; another byte of it, and the release does not hold."""
    repository = released(SOUND)
    release = compose_next(
        RepositorySnapshot(repository),
        product="fraud",
        versions=ONES,
        actor="ana",
        reason="a hook",
    )
    activate(
        RepositorySnapshot(repository),
        release,
        action="activate",
        actor="ana",
        reason="a hook",
    )
    assert (
        "fraud_features/1/hook.py" in read_release(repository, product="fraud").hashes
    )
    assert product_findings(RepositorySnapshot(repository), product="fraud") == []
    path = repository / "fraud_features/1/hook.py"
    path.write_text(path.read_text() + "\n")
    found = {
        one.code: one
        for one in product_findings(RepositorySnapshot(repository), product="fraud")
    }
    assert found["TG310"].where.endswith("fraud_features/1/hook.py")
    assert {"TG311", "TG312"} <= found.keys()  # another vector, too


def test_a_journal_keeps_the_hook_of_a_release(
    released: Callable[[str], Path],
) -> None:
    """So that its features can be read when the repository has it no more."""
    repository = released(SOUND)
    spec = load_spec(repository / FEATURES)
    release = compose_next(
        RepositorySnapshot(repository),
        product="fraud",
        versions=ONES,
        actor="ana",
        reason="a hook",
    )
    activate(
        RepositorySnapshot(repository),
        release,
        action="activate",
        actor="ana",
        reason="a hook",
    )
    files = read_release_files(repository, release.name, product="fraud")
    kept = spec_of(files)
    opened = open_files(ReleaseFiles(release, archived=files, repository=None))
    shutil.rmtree(repository)
    assert kept is not None
    assert kept.spec_hash == opened.spec.spec_hash == spec.spec_hash
    assert kept.hook is not None
