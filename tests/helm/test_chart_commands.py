"""What containers of the chart run: commands that the command line really has."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import chart
import pytest
import typer

from tests.support.helm.rendered_chart import ALL, containers
from tollgate.cli.app import app
from tollgate.repository.remote.mirror import mirror_folder
from tollgate.settings import PREFIX, load_settings

TOLLGATE: Any = typer.main.get_command(app)
LONG_RUNNING = {
    *("serve", "journal run", "stream", "door"),
    *("alarms run", "alarms deliver"),
}


def command_lines(container: dict[str, Any]) -> list[list[str]]:
    """List what a container asks the command line for, without its name."""
    command = container.get("command", [])
    if command == ["tollgate"]:
        return [container["args"]]
    if command[:1] != ["sh"]:
        return []
    return [
        shlex.split(re.split(r"[>|;&]", line.strip())[0])[1:]
        for script in container["args"]
        for line in script.splitlines()
        if line.strip().startswith("tollgate ")
    ]


def parse(words: list[str]) -> str:
    """Parse a command line as the command does, and run nothing; its name."""
    command = TOLLGATE
    name: list[str] = []
    rest = list(words)
    while hasattr(command, "commands"):  # a group
        assert rest[0] in command.commands, f"no command {rest[0]} in {words}"
        name.append(rest.pop(0))
        command = command.commands[name[-1]]
    command.make_context(" ".join(name), rest)
    return " ".join(name)


@pytest.mark.parametrize("name", chart.names())
def test_every_command_line_parses(name: str) -> None:
    """Commands and options exist, and their values are of the kind that they take."""
    for where, container in containers(ALL[name]):
        lines = command_lines(container)
        if "gateway" not in where:
            assert lines, where
        for words in lines:
            parse(words)


def test_a_wrong_command_line_would_be_seen() -> None:
    """The parser refuses what is not there."""
    with pytest.raises(Exception, match="No such option"):
        parse(["serve", "--grpc-prt=8001"])
    with pytest.raises(Exception, match=r"valid (float|number)"):
        parse(["serve", "--drain-delay=soon"])
    with pytest.raises(AssertionError, match="no command served"):
        parse(["served"])


def test_all_that_the_chart_can_do_is_asked_for() -> None:
    """The files of values together run every command that the templates name."""
    run = {
        parse(words)
        for objects in ALL.values()
        for _, container in containers(objects)
        for words in command_lines(container)
    }
    assert run == LONG_RUNNING | {
        "gateway metrics",
        "materialize",
        "journal retain",
        "journal verify",
        "monitor",
        "budget",
        "score",
        "release show",
        "engine",
    }


def test_large_numbers_are_written_out() -> None:
    """Helm reads a million as 1e+06, which no command takes."""
    large = 2_000_000
    job = {"name": "a", "product": "fraud", "schedule": "0 1 * * *", "claimName": "c"}
    gateway = {"enabled": True, "ratePerSecond": large, "burst": large}
    objects, _ = chart.rendered(
        {
            "journalWorker": {"sealRows": large},
            "jobs": {
                "stressProbe": {"enabled": True, "rate": large},
                "materialize": [job | {"rate": large}],
            },
            "gateway": gateway | {"inFlight": large, "callerInFlight": large},
            "tracing": {"endpoint": "http://collector:4318", "rate": large},
        }
    )
    found = dict(containers(objects))
    for container in found.values():
        for words in command_lines(container):
            parse(words)
    said = {
        one["name"]: one["value"]
        for name in (
            "Deployment/prod-tollgate/tollgate",
            "Deployment/prod-tollgate-gateway/nginx",
        )
        for one in found[name]["env"]
        if "value" in one
    }
    for variable in (
        "TOLLGATE_TRACE_RATE",
        "GATEWAY_RATE",
        "GATEWAY_BURST",
        "GATEWAY_IN_FLIGHT",
    ):
        assert said[variable] == str(large), variable


@pytest.mark.parametrize("name", chart.names())
def test_every_setting_in_the_environment_is_known(name: str, tmp_path: Path) -> None:
    """A variable TOLLGATE_… that is no setting would end the command."""
    for where, container in containers(ALL[name]):
        environment = {
            one["name"]: one.get("value", "redis://store:6379")
            for one in container.get("env", [])
        }
        settings = load_settings(environment=environment, folder=tmp_path, flags={})
        if "gateway" not in where:
            assert settings.state == "/var/lib/tollgate", where
            # The door asks servers, and needs no right to the store.
            store = "" if "door" in where else "redis://store:6379"
            assert settings.store_url == store, where
            assert any(key.startswith(PREFIX) for key in environment)


def test_the_journal_is_told_where_it_is() -> None:
    """Beside the store by default; elsewhere, or nowhere, by a variable."""

    def journal(name: str) -> Any:
        server = dict(containers(ALL[name]))["Deployment/prod-tollgate/tollgate"]
        found = [one for one in server["env"] if one["name"] == "TOLLGATE_JOURNAL_URL"]
        return found[0] if found else None

    assert journal("minimal") is None
    assert journal("no-journal")["value"] == ""
    secret = journal("redis-tls")["valueFrom"]["secretKeyRef"]
    assert secret == {"name": "journal-address", "key": "url"}


def test_plans_land_where_the_server_reads(tmp_path: Path) -> None:
    """
    Beside each model.onnx of a model with a configuration for TensorRT, once.

    `tollgate` is one here that makes the files it is asked for: no GPU is at hand. The
    folder of the mirror is that which the server computes.
    """
    container = dict(containers(ALL["tensorrt"]))["Deployment/prod-tollgate/plans"]
    url = chart.values_of("tensorrt")["repository"]["objectStore"]["url"]
    state = tmp_path / "state"
    script = container["args"][0].replace("/var/lib/tollgate", str(state))
    working = mirror_folder(state, url, kind="working") / "repository"
    for model in ("fraud_model/1", "fraud_model/2", "other_model/1"):
        (working / model).mkdir(parents=True)
        (working / model / "model.onnx").touch()
    (working / "fraud_model" / "configs").mkdir()
    (working / "fraud_model" / "configs" / "tensorrt.pbtxt").touch()
    program = tmp_path / "bin" / "tollgate"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = engine ] || exit 0\n'
        'echo "$2" >> "$LOG"; touch "$4" "$4.json"\n'
    )
    program.chmod(0o755)
    log = tmp_path / "log"
    for _ in range(2):
        subprocess.run(
            ["sh", "-euc", script],
            check=True,
            env={"PATH": f"{program.parent}:/usr/bin:/bin", "LOG": str(log)},
        )
    mirror = mirror_folder(state, url)
    plans = sorted(path.relative_to(mirror) for path in mirror.rglob("model.plan"))
    assert [str(path.parent) for path in plans] == ["fraud_model/1", "fraud_model/2"]
    assert len(log.read_text().splitlines()) == 2


def test_who_counts_for_the_gateway_may_end_and_its_container_does_not(
    tmp_path: Path,
) -> None:
    """It is begun again, until the pod is told to end: then both end at once."""
    container = dict(containers(ALL["gateway"]))[
        "Deployment/prod-tollgate-gateway/metrics"
    ]
    program, log = tmp_path / "bin" / "tollgate", tmp_path / "log"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\necho begun >> "$LOG"\n'
        '[ "$(wc -l < "$LOG")" -lt 3 ] && exit 2\nexec sleep 60\n'
    )
    program.chmod(0o755)
    script = container["args"][0].replace("sleep 5", "sleep 0.05")
    with subprocess.Popen(
        [*container["command"], script],
        env={"PATH": f"{program.parent}:/usr/bin:/bin", "LOG": str(log)},
    ) as running:
        while not (log.exists() and len(log.read_text().splitlines()) == 3):
            assert running.poll() is None
            time.sleep(0.02)
        running.terminate()
        assert running.wait() == 0
