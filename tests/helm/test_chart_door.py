"""The door in the chart: what it knows, and how it starts and ends."""

from __future__ import annotations

from typing import Any

import chart
import pytest

from tests.support.helm.rendered_chart import ALL, containers, pods

DOOR = "Deployment/prod-tollgate-door"


def door() -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod, and its container."""
    pod = dict(pods(ALL["door"]))[DOOR]
    return pod, dict(containers(ALL["door"]))[f"{DOOR}/door"]


def test_it_has_no_address_of_the_store() -> None:
    """It asks servers and reads the repository; keys and TLS are files of secrets."""
    pod, container = door()
    assert {one["name"] for one in container["env"]} == {
        *("HOME", "TOLLGATE_REPOSITORY", "TOLLGATE_STATE"),
    }
    secrets = [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one]
    assert secrets == ["tollgate-door-keys", "tollgate-door-tls"]


def test_it_asks_all_servers_of_the_release_in_turn() -> None:
    """By the headless Service, for every product."""
    _, container = door()
    assert "--url=dns:///prod-tollgate-headless:8001" in container["args"]
    assert [one for one in container["args"] if one.startswith("--product=")] == [
        *("--product=fraud", "--product=credit"),
    ]


def test_probes_speak_as_callers_do() -> None:
    """HTTPS with a certificate, HTTP without."""
    _, container = door()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    plain, _ = chart.rendered({"door": {"enabled": True}})
    found = dict(containers(plain))[f"{DOOR}/door"]
    assert found["readinessProbe"]["httpGet"]["scheme"] == "HTTP"
    assert not [one for one in found["args"] if "keys" in one or "cert" in one]


def test_it_has_time_to_answer_before_it_ends() -> None:
    """Load balancers first, then 15 s for requests in flight."""
    pod, container = door()
    before_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= before_s + 15 + 10


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"rowsInFlight": 100}, "door.callerRowsInFlight is above door.rowsInFlight"),
        ({"maxRows": 1000}, "door.maxRows is above door.callerRowsInFlight"),
    ],
)
def test_limits_that_cannot_be_meant_are_refused(
    values: dict[str, int], problem: str
) -> None:
    """With the names of the values."""
    with pytest.raises(Exception, match=problem):
        chart.rendered({"door": {"enabled": True, **values}})
