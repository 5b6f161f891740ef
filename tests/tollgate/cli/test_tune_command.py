"""`tollgate tune` on a real server: it tries settings, and what was comes back."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tollgate.cli.operations.latency_commands import tune as tune_here
from tollgate.errors import InputError, ServerError
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.served_versions import served_spec
from tollgate.repository.serving_form import queue_delay_us
from tollgate.server.address import Address, find_server
from tollgate.server.serving.loaded import record_path
from tollgate.server.triton import control
from tollgate.supervisor.fault_log import read_faults
from tollgate.testing.supervised import Supervised, supervised
from tollgate.tuning.bench import Bench, TuningOptions
from tollgate.tuning.driver import Traffic
from tollgate.tuning.override import Override
from tollgate.tuning.settings import Roles
from tollgate.tuning.space import Candidate

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]
BASE, QUICK = Candidate(5000), Candidate(0)
# One other setting, in runs as short as may be.
LITTLE = ("--preset", "low-latency", "--try", "threads=1")
RUNS = ("--seconds", "0.5", "--turns", "3")
SHORT = (*LITTLE, "--try", "form=ensemble", *RUNS)
PATIENCE_S = 600.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed product."""
    folder = tmp_path_factory.mktemp("tune") / "model_repository"
    leave = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(CHECKOUT / "model_repository", folder, ignore=leave))


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Supervised]:
    """One server for the tests of this module."""
    with supervised(repository, state=repository.parent / "state") as server:
        yield server


@pytest.fixture
def server(served: Supervised) -> Iterator[Address]:
    """That server runs as before after tuning, and no fault was recorded."""
    address = find_server(served.state)
    assert address is not None
    yield address
    assert running(address) == BASE
    served.wait(served.ready)
    assert read_faults(served.state) == []


def command(served: Supervised, *words: str) -> list[str]:
    """Name the command that tunes a server."""
    code = "from tollgate.cli import main; main()"
    return [sys.executable, "-c", code, "tune", "--state", str(served.state), *words]


def tune(served: Supervised, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        command(served, *words), capture_output=True, text=True, check=False
    )


def override(server: Address, *, record: Path | None = None) -> Override:
    """Make an override as the command does."""
    state = Path(server.slots).parent
    models = read_product(Path(server.repository), "fraud")
    path = record or record_path(state, "fraud")
    return Override(server, record=path, roles=Roles(models))


def running(server: Address) -> Candidate:
    """Ask the server what it runs with, not who set it."""

    def instances(step: str) -> int:
        groups = control.model_config(server, step)["instance_group"]
        return sum(int(group["count"]) for group in groups)

    model = control.model_config(server, "fraud_model")
    batching = model["dynamic_batching"]
    (preferred,) = batching["preferred_batch_size"]
    delays = [
        control.model_config(server, f"fraud_{step}")["dynamic_batching"]
        for step in ("features", "model", "decision")
    ]
    return Candidate(
        delay_us=sum(int(one.get("max_queue_delay_microseconds", 0)) for one in delays),
        preferred=preferred % 32,  # Triton says 32 where none is preferred
        threads=int(model["parameters"]["intra_op_thread_count"]["string_value"]),
        features_instances=instances("fraud_features"),
        model_instances=instances("fraud_model"),
        decision_instances=instances("fraud_decision"),
    )


def loaded(server: Address, model: str) -> bool:
    """Ask whether the server runs a model of a product."""
    return 1 in control.ready_versions(server, model)


def wait_for(server: Address, settings: Candidate) -> None:
    """Wait until the server runs with settings."""
    until_s = time.monotonic() + PATIENCE_S
    while running(server) != settings:
        assert time.monotonic() < until_s
        time.sleep(0.05)


def hashes(folder: Path) -> dict[str, str]:
    """Read what a folder holds."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_settings_are_tried_and_put_back(
    served: Supervised, server: Address, repository: Path
) -> None:
    """
    No file is touched, nobody takes an instance that was taken away for a dead one,
    and what is loaded is what the server's record says.
    """
    before = hashes(repository)
    record = record_path(served.state, "fraud").read_bytes()
    many = Candidate(1000, 8, features_instances=2)
    fused = Candidate(5000, form="fused")
    with override(server) as tried:
        assert tried.base == BASE
        for settings in (many, fused, QUICK):
            tried.apply(settings)
            assert tried.holds(settings)
            assert loaded(server, "fraud--next") == (settings != many)
            if settings != fused:
                assert running(server) == settings
    assert running(server) == BASE
    assert not loaded(server, "fraud--next")
    assert hashes(repository) == before
    assert record_path(served.state, "fraud").read_bytes() == record


def test_an_error_puts_back_too(server: Address) -> None:
    """Whatever ends the block; settings that Triton refuses change nothing."""

    def fail() -> None:
        with override(server) as tried:
            tried.apply(QUICK)
            with pytest.raises(ServerError):
                tried.apply(Candidate(QUICK.delay_us, 33))
            assert running(server) == QUICK
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert running(server) == BASE


def test_a_release_that_comes_meanwhile_goes_first(
    served: Supervised, server: Address, tmp_path: Path
) -> None:
    """What is measured would be another's; its own words are loaded already."""
    record = tmp_path / "record.json"
    text = record_path(served.state, "fraud").read_text()
    record.write_text(text)
    with override(server, record=record) as tried:
        tried.apply(BASE)
        record.write_text(text.replace("fraud-1", "fraud-2"))
        with pytest.raises(ServerError, match="went to release fraud-2 meanwhile"):
            tried.apply(QUICK)


def test_a_server_that_may_have_callers_is_left_alone(
    served: Supervised, server: Address
) -> None:
    """One line that says how to say otherwise."""
    done = tune(served)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "`staging: true` in tollgate.yaml" in done.stderr


def test_what_cannot_be_tuned_is_said_before_anything_is_loaded(
    served: Supervised, server: Address
) -> None:
    """A name that is taken or cannot be one; nothing to try; what is no knob."""
    ask = partial(tune_here, state=str(served.state), yes=True)
    with pytest.raises(InputError, match=r"gpu\.pbtxt is there already"):
        ask(name="gpu")
    with pytest.raises(InputError, match="'a/b' is not the name of a file"):
        ask(name="a/b")
    same = ["delay_us=5000", "threads=1", "form=ensemble"]
    with pytest.raises(InputError, match="leaves nothing to try"):
        ask(preset="low-latency", values=same, write=False)
    with pytest.raises(InputError, match="are the model's whole layer"):
        ask(values=["delay_us=20000"])
    with pytest.raises(InputError, match="knobs: delay_us"):
        ask(values=["max_queue_size=64"])


def test_a_tuning_ends_with_a_configuration_or_says_why_not(
    served: Supervised, server: Address, repository: Path
) -> None:
    """
    Which of both is a matter of the machine; the runs are stored either way.

    There is a low-latency.pbtxt, and it stays; the name that nobody said is another.
    """
    name = "low-latency-2"
    done = tune(served, "--yes", *SHORT)
    assert done.returncode in (0, 1), done.stderr
    written = repository / "fraud_model" / "configs" / f"{name}.pbtxt"
    assert written.exists() == (done.returncode == 0)
    tuning = json.loads((served.state / f"tune/{name}/tuning.json").read_text())
    assert len(tuning["tuned"]["compared"]["turns"]) == 3
    assert (served.state / f"tune/{name}/tuning.png").stat().st_size > 10_000
    assert "best found" in done.stdout
    if written.exists():
        named = read_product(repository, "fraud", config_name=name)
        configs = {**named.steps, "fraud": named.ensemble}
        assert Roles(named).read(configs) == QUICK


def test_two_tunings_do_not_meet(served: Supervised, server: Address) -> None:
    """Each would put back what the other tries."""
    with override(server):
        done = tune(served, "--restore")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is in use by process" in done.stderr


def test_ctrl_c_puts_back(served: Supervised, server: Address) -> None:
    """SIGTERM likewise; nothing is written."""
    for number in (signal.SIGINT, signal.SIGTERM):
        tuning = subprocess.Popen(
            command(served, "--yes", "--name", "cut", *SHORT[:-1], "10"),
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(server, QUICK)
            tuning.send_signal(number)
            assert tuning.wait(timeout=PATIENCE_S) == 130
        finally:
            tuning.kill()
            tuning.wait()
        assert running(server) == BASE


def test_what_a_killed_one_left_behind_is_put_back(
    served: Supervised, server: Address
) -> None:
    """By the next one, or by a command of its own."""
    tuning = subprocess.Popen(
        command(served, "--yes", "--name", "cut", *SHORT[:-1], "10"),
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(server, QUICK)
    finally:
        tuning.kill()
        tuning.wait()
    assert running(server) == QUICK
    done = tune(served, "--restore")
    said = "put back: fraud_features, fraud_model, fraud_decision\n"
    assert (done.returncode, done.stderr) == (0, said)


@pytest.fixture(scope="module")
def fused(repository: Path) -> Iterator[Supervised]:
    """One server of the fused form."""
    state = repository.parent / "fused-state"
    words = ("up", "--form", "fused")
    with supervised(repository, state=state, words=words) as server:
        yield server


def test_a_fused_product_is_tuned_and_its_form_compared(
    fused: Supervised, repository: Path
) -> None:
    """
    The form stays; the file that is written has the delay of the fused model.

    Which settings win is a matter of the machine; the comparison has both forms.
    """
    before = hashes(repository)
    done = tune(fused, "--yes", "--name", "forms", *LITTLE, *RUNS)
    assert done.returncode in (0, 1), done.stderr
    address = fused.address
    assert control.is_fused(address, "fraud")
    for name in ("fraud--next", "fraud_features", "fraud_model", "fraud_decision"):
        assert not loaded(address, name)
    config = control.model_config(address, "fraud")["dynamic_batching"]
    assert config["max_queue_delay_microseconds"] == "1000"
    tuning = json.loads((fused.state / "tune/forms/tuning.json").read_text())["tuned"]
    assert tuning["base"]["form"] == "fused"
    forms = tuning["forms"]
    assert {forms[side]["form"] for side in ("candidate", "base")} == {
        "fused",
        "ensemble",
    }
    assert len(forms["turns"]) == 3
    assert done.stdout.count("form: ") == 1
    written = {*hashes(repository)} - {*before}
    if written == {str(repository / "fraud" / "configs" / "forms.pbtxt")}:
        named = read_product(repository, "fraud", config_name="forms")
        assert queue_delay_us(named.ensemble, source="fraud") == 0
    else:
        winner = f"form: {forms['candidate']['form']} is recommended"
        assert winner in done.stdout or done.returncode == 1
    assert read_faults(fused.state) == []


def test_the_other_form_that_a_killed_one_left_behind_is_unloaded(
    fused: Supervised,
) -> None:
    """The product answers all the while; its settings are restored, too."""
    words = ("--yes", "--no-write", *LITTLE, "--seconds", "20")
    tuning = subprocess.Popen(command(fused, *words), stderr=subprocess.DEVNULL)
    try:
        fused.wait(lambda: loaded(fused.address, "fraud--next"))
    finally:
        tuning.kill()
        tuning.wait()
    done = tune(fused, "--restore")
    assert done.returncode == 0
    assert done.stderr.startswith("put back: ")
    assert "fraud--next" in done.stderr
    for name in ("fraud--next", "fraud_features", "fraud_model", "fraud_decision"):
        assert not loaded(fused.address, name)
    assert control.is_fused(fused.address, "fraud")
    fused.wait(fused.ready)


def test_a_product_that_cannot_be_fused_gets_the_reason(
    served: Supervised, server: Address, tmp_path: Path
) -> None:
    """It is tuned as an ensemble, unless only the fused form is to be tried."""
    copy = tmp_path / "models"
    shutil.copytree(server.repository, copy)
    config = copy / "fraud_model" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_CPU", "KIND_GPU"))
    moved = msgspec.structs.replace(server, repository=str(copy))

    def bench(*values: str) -> Bench:
        wanted = TuningOptions(
            preset="throughput",
            name="",
            values=values,
            most=9,
            seconds=1.0,
            turns=3,
            rows=1,
            p99_ms=None,
            rate_per_s=100.0,
            seed=1,
            cores=2,
            command="tollgate tune",
        )
        spec = served_spec(copy, product="fraud")
        traffic = Traffic("fraud", spec, rows=1, within_ms=50.0)
        return Bench(moved, wanted, traffic=traffic, state=served.state)

    assert "is KIND_GPU, not KIND_CPU" in bench().unfusable
    assert bench("form=ensemble").unfusable == ""
    with pytest.raises(InputError, match="as an ensemble only, not fused"):
        bench("form=fused")
