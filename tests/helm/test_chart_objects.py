"""Objects of the chart fit each other and what Tollgate needs."""

from __future__ import annotations

import re
from typing import Any

import chart
import pytest
import yaml

from tests.support.helm.rendered_chart import (
    ALL,
    containers,
    pod_labels,
    pods,
    selected,
)
from tollgate.journal.journal_spool import MOST_BYTES as JOURNAL_SPOOL_BYTES
from tollgate.metrics import CUSTOM
from tollgate.repair.event_spool import MOST_BYTES as SPOOL_BYTES
from tollgate.server.processes.environment import SHM_NEEDED_BYTES
from tollgate.server.triton.launcher import DRAIN_S

EVERY = pytest.mark.parametrize("name", chart.names())
INSTANCE_BYTES = 16 << 20  # of /dev/shm, for a Python step with large batches
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


def bytes_of(quantity: str) -> int:
    """Read a quantity of memory."""
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


# Security -----------------------------------------------------------------------------


@EVERY
def test_no_pod_is_root_or_can_become_it(name: str) -> None:
    """Pod Security Standard `restricted`, with a root file system that is read-only."""
    for where, pod in pods(ALL[name]):
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, where
        assert security["runAsUser"] > 0, where
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert pod["automountServiceAccountToken"] is False, where
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), where
    for where, container in containers(ALL[name]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, where


@EVERY
def test_secrets_are_named_and_never_there(name: str) -> None:
    """No object is a Secret; addresses of stores come from one, by variables."""
    assert not [key for key in ALL[name] if key.startswith("Secret/")]
    for where, container in containers(ALL[name]):
        for one in container.get("env", []):
            if one["name"].endswith("_URL") and one.get("value") != "":
                assert "secretKeyRef" in one["valueFrom"], where
        # Others read a command line: no address of Redis, and no variable put into it.
        told = " ".join((*container.get("command", []), *container.get("args", [])))
        assert not re.search(r"rediss?://|\$\(\w+_URL\)", told), where


@EVERY
def test_requests_are_the_limits(name: str) -> None:
    """So every pod is Guaranteed."""
    for where, container in containers(ALL[name]):
        resources = container["resources"]
        assert resources["requests"] == resources["limits"], where
        assert {"cpu", "memory"} <= resources["limits"].keys(), where


@EVERY
def test_services_put_nothing_into_the_environment(name: str) -> None:
    """A Service called tollgate would set TOLLGATE_PORT, which is no setting."""
    for where, pod in pods(ALL[name]):
        assert pod["enableServiceLinks"] is False, where


# Volumes and ports --------------------------------------------------------------------


@EVERY
def test_every_mount_has_its_volume_and_every_volume_its_mount(name: str) -> None:
    """None is missing, and none is left over."""
    for where, pod in pods(ALL[name]):
        volumes = [one["name"] for one in pod["volumes"]]
        assert len(set(volumes)) == len(volumes), where
        every = (*pod.get("initContainers", []), *pod["containers"])
        mounted = [one for container in every for one in container["volumeMounts"]]
        assert {one["name"] for one in mounted} == set(volumes), where
        for container in every:
            paths = [one["mountPath"] for one in container["volumeMounts"]]
            assert len(set(paths)) == len(paths), where


@EVERY
def test_configmaps_and_claims_of_the_release_are_there(name: str) -> None:
    """What is called after the release is made by it, but claims that people named."""
    for where, pod in pods(ALL[name]):
        for volume in pod["volumes"]:
            for kind, key, word in (
                ("ConfigMap", "configMap", "name"),
                ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName"),
            ):
                named = volume.get(key, {}).get(word, "")
                if named.startswith("prod-"):
                    assert f"{kind}/{named}" in ALL[name], where


@EVERY
def test_ports_that_are_named_exist(name: str) -> None:
    """Of probes in their container, of Services in the pods that they select."""
    for where, container in containers(ALL[name]):
        ports = {one["name"] for one in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports, where
    for key, one in ALL[name].items():
        if one["kind"] != "Service":
            continue
        behind = [
            {
                port["name"]
                for container in pod["containers"]
                for port in container["ports"]
            }
            for (_, labels), (_, pod) in zip(
                pod_labels(name), pods(ALL[name]), strict=True
            )
            if selected(one["spec"]["selector"], labels)
        ]
        assert behind, f"{key} selects nothing"
        for ports in behind:
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports, key


@EVERY
def test_workloads_select_their_own_pods_alone(name: str) -> None:
    """No two Deployments share pods, and no selector asks for a version."""
    for key, one in ALL[name].items():
        if one["kind"] != "Deployment":
            continue
        selector = one["spec"]["selector"]["matchLabels"]
        found = [
            where for where, labels in pod_labels(name) if selected(selector, labels)
        ]
        assert found == [key]
        assert not {"app.kubernetes.io/version", "helm.sh/chart"} & selector.keys()


def test_names_are_no_longer_than_a_cluster_takes() -> None:
    """A CronJob's has 52 characters at most, for its jobs' come behind; others' 63."""
    values = chart.values_of("jobs") | {"products": ["fraud", "fraud_of_the_south"]}
    release = "payments-decisions-of-the-southern-production"
    objects, _ = chart.rendered(values, release=release)
    names = [key.split("/") for key in objects]
    assert len(names) == len(objects)
    for kind, name in names:
        most = {"CronJob": 52, "PersistentVolumeClaim": 253, "Deployment": 253}
        assert len(name) <= most.get(kind, 63), name
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name), name


# The server ---------------------------------------------------------------------------


def server(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Name the pod of the servers, and its container."""
    pod = dict(pods(ALL[name]))["Deployment/prod-tollgate"]
    return pod, pod["containers"][0]


@EVERY
def test_a_pod_has_time_to_end(name: str) -> None:
    """Longer than leaving callers, serving on, and Triton's requests in flight."""
    pod, container = server(name)
    before_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    (delay,) = [one for one in container["args"] if one.startswith("--drain-delay=")]
    needed_s = before_s + int(delay.partition("=")[2]) + DRAIN_S
    assert pod["terminationGracePeriodSeconds"] >= needed_s + 10


def test_the_gateway_notices_a_server_that_goes_while_it_serves() -> None:
    """It looks every few seconds, and CoreDNS remembers an address for five."""
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())["server"]
    script = (chart.CHART / "files" / "gateway" / "90-watch.sh").read_text()
    (every_s,) = re.findall(r"GATEWAY_WATCH_S:-(\d+)", script)
    serves_s = values["preStopSeconds"] + values["drainDelaySeconds"]
    assert serves_s > int(every_s) + 5 + 1  # and reads its files anew


@EVERY
def test_shared_memory_fits_the_steps(name: str) -> None:
    """What a start demands free, and 16 MiB for each instance; less than the memory."""
    pod, container = server(name)
    (shm,) = [one["emptyDir"] for one in pod["volumes"] if one["name"] == "shm"]
    products = [one for one in container["args"] if one.startswith("--product=")]
    assert shm["medium"] == "Memory"
    size = bytes_of(shm["sizeLimit"])
    assert size >= SHM_NEEDED_BYTES + 3 * len(products) * INSTANCE_BYTES
    assert size < bytes_of(container["resources"]["limits"]["memory"]) / 4
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]


@EVERY
def test_full_spools_do_not_evict_a_pod(name: str) -> None:
    """The state folder holds both spools of each product when they are full."""
    pod, container = server(name)
    (state,) = [one for one in pod["volumes"] if one["name"] == "state"]
    if "emptyDir" in state:
        size = state["emptyDir"]["sizeLimit"]
    else:
        template = state["ephemeral"]["volumeClaimTemplate"]["spec"]
        size = template["resources"]["requests"]["storage"]
    products = [one for one in container["args"] if one.startswith("--product=")]
    assert bytes_of(size) > len(products) * (SPOOL_BYTES + JOURNAL_SPOOL_BYTES)


@EVERY
def test_probes_ask_the_supervisor(name: str) -> None:
    """Starting and ready by what decides, alive by who mends; on the side port."""
    _, container = server(name)
    assert "--side-port=8003" in container["args"]
    assert {"name": "side", "containerPort": 8003} in container["ports"]
    product = container["args"][1].removeprefix("--product=")
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] == f"/readyz/{product}"
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_the_autoscaler_owns_the_number_of_servers() -> None:
    """By what waits, and never by CPU; the Deployment says no number then."""
    assert "replicas" not in ALL["autoscaling"]["Deployment/prod-tollgate"]["spec"]
    assert ALL["minimal"]["Deployment/prod-tollgate"]["spec"]["replicas"] == 3
    scaler = ALL["autoscaling"]["HorizontalPodAutoscaler/prod-tollgate"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == "prod-tollgate"
    named = [one["pods"]["metric"]["name"] for one in scaler["metrics"]]
    assert named == [row.name for row in CUSTOM[1]]
    paper = chart.README.read_text()
    for metric in named:
        assert f"as: {metric}" in paper  # prometheus-adapter's rule


def test_a_canary_is_the_server_but_its_image() -> None:
    """Weights add up, and nobody else's Service has canaries in it."""
    objects = ALL["canary"]
    stable = objects["Deployment/prod-tollgate"]["spec"]["template"]["spec"]
    canary = objects["Deployment/prod-tollgate-canary"]["spec"]["template"]["spec"]
    assert stable["containers"][0].pop("image") == "tollgate:0.1.0"
    assert canary["containers"][0].pop("image") == "tollgate:0.2.0"
    for pod in (stable, canary):
        del pod["topologySpreadConstraints"]  # each counts its own
    assert stable == canary
    (rule,) = objects["GRPCRoute/prod-tollgate"]["spec"]["rules"]
    assert [one["weight"] for one in rule["backendRefs"]] == [95, 5]
    for back in rule["backendRefs"]:
        assert f"Service/{back['name']}" in objects
    track = {"prod-tollgate": "stable", "prod-tollgate-canary": "canary"}
    for service, word in track.items():
        selector = objects[f"Service/{service}"]["spec"]["selector"]
        assert selector["tollgate/track"] == word
