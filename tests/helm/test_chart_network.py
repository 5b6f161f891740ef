"""What may reach what, and the gateway before it all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

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
from tollgate.gateway.template import Gateway

COMPONENT = "app.kubernetes.io/component"
LABELS = {
    "app.kubernetes.io/name": "tollgate",
    "app.kubernetes.io/instance": "prod",
}
EVERY = pytest.mark.parametrize("name", chart.names())


# The network --------------------------------------------------------------------------


@EVERY
def test_all_is_denied_but_what_a_rule_allows(name: str) -> None:
    """One policy takes everything from every pod; another gives each what it needs."""
    policies = {
        key: one["spec"]
        for key, one in ALL[name].items()
        if one["kind"] == "NetworkPolicy"
    }
    deny = policies.pop("NetworkPolicy/prod-tollgate-deny")
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & deny.keys()
    for where, labels in pod_labels(name):
        assert selected(deny["podSelector"]["matchLabels"], labels), where
        own = [
            key
            for key, one in policies.items()
            if selected(one["podSelector"]["matchLabels"], labels)
        ]
        # Retention and monitor read and write volumes, and nobody else.
        alone = "retention" in where or "monitor" in where
        assert len(own) == (0 if alone else 1), where


@EVERY
def test_models_are_controlled_from_nowhere(name: str) -> None:
    """
    A server is reached on three ports, each for somebody named.

    On the gRPC port the secret of each start, which stays in the pod, closes the rest;
    no variable, argument or file of the chart sets or knows one. Routes name decisions,
    health and metadata alone.
    """
    policy = ALL[name]["NetworkPolicy/prod-tollgate-server"]["spec"]
    for rule in policy["ingress"]:
        assert {one["port"] for one in rule["ports"]} <= {8001, 8002, 8003}
        assert rule["from"], "nobody is not everybody"
        assert all(rule["from"]), "an empty peer is everybody"
    for key, one in ALL[name].items():
        if one["kind"] == "GRPCRoute":
            asked = [match["method"] for match in one["spec"]["rules"][0]["matches"]]
            assert not [
                one for one in asked if "Repository" in one.get("method", "all")
            ]
            named = {one["service"] for one in asked if "method" not in one}
            assert named == {"grpc.health.v1.Health"}, key


def test_metrics_and_side_port_are_for_those_who_are_named() -> None:
    """Without a name nobody reads them; operators read the side port alone."""

    def ports(name: str) -> list[set[int]]:
        rules = ALL[name]["NetworkPolicy/prod-tollgate-server"]["spec"]["ingress"]
        return [{one["port"] for one in rule["ports"]} for rule in rules]

    assert ports("minimal") == [{8001}]
    assert ports("monitoring") == [{8001}, {8002, 8003}, {8003}]


def test_consumers_reach_what_carries_events() -> None:
    """Brokers, or the Redis of the feed, beside the store."""

    def ports(name: str) -> set[int]:
        rules = ALL[name]["NetworkPolicy/prod-tollgate-stream"]["spec"]["egress"]
        return {one["port"] for rule in rules for one in rule["ports"]}

    assert ports("kafka") == {53, 6379, 9093}
    assert ports("redis-stream") == {53, 6379, 6390}
    assert ports("products") == {53, 6379}


def test_servers_reach_the_collector_of_traces() -> None:
    """Where one is named: its port, in its namespace; else nothing is open for it."""

    def rules(name: str) -> list[object]:
        egress = ALL[name]["NetworkPolicy/prod-tollgate-server"]["spec"]["egress"]
        return [
            one["to"]
            for one in egress
            if {"port": 4318, "protocol": "TCP"} in one["ports"]
        ]

    tracing = {"kubernetes.io/metadata.name": "tracing"}
    assert rules("tracing") == [[{"namespaceSelector": {"matchLabels": tracing}}]]
    assert rules("minimal") == []


def test_whoever_reads_the_repository_reaches_what_gives_the_rights() -> None:
    """The metadata server, of a cloud whose identities read the object store."""
    metadata = chart.values_of("gcs")["networkPolicy"]["extraEgress"][0]
    values = chart.values_of("gcs") | {"jobs": chart.values_of("jobs")["jobs"]}
    objects, _ = chart.rendered(values | {"stream": {"enabled": True}})
    for component in (
        *("server", "journal", "stream"),
        *("materialize", "stress-probe", "helm-test"),
    ):
        policy = objects[f"NetworkPolicy/prod-tollgate-{component}"]["spec"]
        assert metadata in policy["egress"], component


def test_metrics_of_the_monitor_are_scraped() -> None:
    """By the pod's port of that name, which is open to those who read metrics."""
    objects = ALL["monitor"]
    found = dict(containers(objects))
    name = "Deployment/prod-tollgate-journal-fraud/monitor"
    (port,) = found[name]["ports"]
    endpoints = objects["PodMonitor/prod-tollgate"]["spec"]["podMetricsEndpoints"]
    assert port["name"] in [one["port"] for one in endpoints]
    assert f"--metrics-port={port['containerPort']}" in found[name]["args"]
    (rule,) = objects["NetworkPolicy/prod-tollgate-journal"]["spec"]["ingress"]
    assert port["containerPort"] in [one["port"] for one in rule["ports"]]


# The gateway --------------------------------------------------------------------------


def test_a_gateway_reaches_what_it_is_sent_to() -> None:
    """This chart's servers, or what is in their place by the rules that are named."""

    def egress(values: dict[str, object]) -> list[object]:
        objects, _ = chart.rendered({"gateway": {"enabled": True} | values})
        policy = objects["NetworkPolicy/prod-tollgate-gateway"]
        assert chart.problems(policy) == ()
        return list(policy["spec"]["egress"])

    own = [{"podSelector": {"matchLabels": LABELS | {COMPONENT: "server"}}}]
    dns, servers = egress({})
    assert servers == {"ports": [{"port": 8001, "protocol": "TCP"}], "to": own}
    rule = {
        "ports": [{"port": 10080, "protocol": "TCP"}],
        "to": [{"namespaceSelector": {"matchLabels": {"name": "gateways"}}}],
    }
    other = {"upstream": "payments.gateways:80", "servers": 4, "upstreamEgress": [rule]}
    assert egress(other) == [dns, rule]


def test_every_variable_of_nginxs_file_has_a_value() -> None:
    """The image's envsubst would leave ${GATEWAY_…} as it is, and nginx refuse it."""
    text = ALL["gateway"]["ConfigMap/prod-tollgate-gateway"]["data"]
    used = set(re.findall(r"\$\{(\w+)\}", text["nginx.conf.template"]))
    pod = dict(pods(ALL["gateway"]))["Deployment/prod-tollgate-gateway"]
    environment = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    assert used, "the file is a template"
    assert used <= environment.keys()
    assert all(re.match(environment["NGINX_ENVSUBST_FILTER"], one) for one in used)
    host, _, port = environment["GATEWAY_UPSTREAM"].partition(":")
    service = ALL["gateway"][f"Service/{host}"]["spec"]
    assert service["ports"][0]["port"] == int(port)
    assert service["clusterIP"] == "None"


def test_a_gateway_bounds_what_the_command_bounds() -> None:
    """What values leave unsaid is as `tollgate gateway run` has it."""
    objects, _ = chart.rendered({"gateway": {"enabled": True}})
    pod = dict(pods(objects))["Deployment/prod-tollgate-gateway"]
    environment = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    here = Path("here")
    command = Gateway(
        state=here,
        upstream="h:1",
        listen="h:2",
        health_listen="h:3",
        tls_cert=here,
        tls_key=here,
        keys=here,
    ).values()
    in_flight = ("IN_FLIGHT", "CALLER_IN_FLIGHT", "BULK_IN_FLIGHT")
    for bound in ("RATE", "BURST", *in_flight, "MAX_BODY", "AUTH", "VERIFY_CLIENT"):
        assert environment[f"GATEWAY_{bound}"] == command[f"GATEWAY_{bound}"], bound


def test_who_counts_is_told_what_nginx_is_told() -> None:
    """The bounds, and the file: one that cannot fill a disk, and no secret beside."""
    pod = dict(pods(ALL["gateway"]))["Deployment/prod-tollgate-gateway"]
    nginx, metrics = pod["containers"]
    environment = {one["name"]: one["value"] for one in nginx["env"]}
    (line,) = [one for one in metrics["args"][0].splitlines() if "tollgate " in one]
    for option, name in (
        ("rate", "RATE"),
        ("in-flight", "IN_FLIGHT"),
        ("caller-in-flight", "CALLER_IN_FLIGHT"),
        ("bulk-in-flight", "BULK_IN_FLIGHT"),
    ):
        assert f" --{option}={environment[f'GATEWAY_{name}']} " in line
    assert f" --bounds={environment['GATEWAY_BOUNDS']} " in line
    path = environment["GATEWAY_REQUESTS"]
    assert f" {path} " in line
    (mount,) = metrics["volumeMounts"]
    assert mount in nginx["volumeMounts"]
    assert path.rpartition("/")[0] == mount["mountPath"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Mi"}
    (policy,) = [
        one["spec"]
        for key, one in ALL["gateway"].items()
        if key == "NetworkPolicy/prod-tollgate-gateway"
    ]
    assert len(policy["ingress"]) == 1, "nobody reads metrics who is not named"


def test_a_gateway_that_nobody_counts_writes_nothing() -> None:
    """One container, no file, no port."""
    objects, _ = chart.rendered(
        {"gateway": {"enabled": True, "metrics": {"enabled": False}}}
    )
    (nginx,) = dict(pods(objects))["Deployment/prod-tollgate-gateway"]["containers"]
    environment = {one["name"]: one["value"] for one in nginx["env"]}
    assert environment["GATEWAY_REQUESTS"] == "/dev/null"


@pytest.mark.parametrize(
    ("auth", "mounts", "verify"),
    [
        ("keys", {"tls", "keys"}, "off"),
        ("mtls", {"tls", "clients"}, "optional"),
        ("either", {"tls", "keys", "clients"}, "optional"),
        ("both", {"tls", "keys", "clients"}, "optional"),
    ],
)
def test_the_gateway_has_what_it_asks_callers_for(
    auth: str, mounts: set[str], verify: str
) -> None:
    """Keys, the authority of client certificates, or both; and no other secret."""
    objects, _ = chart.rendered({"gateway": {"enabled": True, "auth": auth}})
    pod = dict(pods(objects))["Deployment/prod-tollgate-gateway"]
    assert {one["name"] for one in pod["volumes"] if "secret" in one} == mounts
    container = pod["containers"][0]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment["GATEWAY_AUTH"] == auth
    assert environment["GATEWAY_VERIFY_CLIENT"] == verify
    folders = {one["mountPath"] for one in container["volumeMounts"]} | {"/dev"}
    for variable in ("TLS_CERT", "TLS_KEY", "CLIENT_CA", "KEYS"):
        path = environment[f"GATEWAY_{variable}"]
        assert path.rpartition("/")[0] in folders, variable


@pytest.mark.system("nginx", "envsubst", "openssl")
def test_nginx_takes_its_file_with_the_charts_values(tmp_path: Path) -> None:
    """As the image's envsubst makes it; folders, addresses, secrets are of here."""
    objects = ALL["gateway"]
    pod = dict(pods(objects))["Deployment/prod-tollgate-gateway"]
    environment = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    files = objects["ConfigMap/prod-tollgate-gateway"]["data"]
    template = files["nginx.conf.template"]
    (tmp_path / "inspection.js").write_text(files["inspection.js"])
    names = [name for name in environment if name.startswith("GATEWAY_")]
    here = {
        name: value.replace("/etc/tollgate", str(tmp_path))
        .replace("/tmp/nginx", str(tmp_path))
        .replace("/tmp/requests", str(tmp_path))
        for name, value in environment.items()
    } | {"GATEWAY_UPSTREAM": "127.0.0.1:8001", "GATEWAY_LOG": "/dev/null"}
    for folder in ("tls", "keys", "clients"):
        (tmp_path / folder).mkdir()
    (tmp_path / "keys" / "keys.map").write_text(f"{'a' * 40} shop;\n")
    certificate, key = tmp_path / "tls" / "tls.crt", tmp_path / "tls" / "tls.key"
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=here"
    subprocess.run(
        [*made.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    shutil.copy(certificate, tmp_path / "clients" / "ca.crt")
    filled = subprocess.run(
        ["envsubst", " ".join(f"${{{name}}}" for name in names)],
        input=template,
        env=os.environ | here,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not re.search(r"\$\{GATEWAY_\w", filled)
    (tmp_path / "nginx.conf").write_text(filled)
    done = subprocess.run(
        ["nginx", "-t", "-c", str(tmp_path / "nginx.conf"), "-e", "stderr"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# The paper ----------------------------------------------------------------------------


@pytest.mark.system("promtool")
def test_prometheus_takes_the_papers_queries(tmp_path: Path) -> None:
    """Those of prometheus-adapter's rules, as it fills them in, and KEDA's."""
    adapter, keda = re.findall(r"```yaml\n(.*?)```", chart.README.read_text(), re.S)
    queries = [
        one["metricsQuery"]
        .replace("<<.LabelMatchers>>", 'namespace="payments",pod=~"a|b"')
        .replace("<<.GroupBy>>", "pod")
        for one in yaml.safe_load(adapter)["rules"]
    ]
    (trigger,) = yaml.safe_load(keda)["spec"]["triggers"]
    queries.append(trigger["metadata"]["query"])
    rules = [{"record": f"r{at}", "expr": query} for at, query in enumerate(queries)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "paper", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "4 rules found" in done.stdout


def test_the_door_is_open_to_its_callers_and_reaches_servers_alone() -> None:
    """Its callers and Prometheus come in; servers, DNS and nothing of the store out."""
    objects = ALL["door"]
    policy = objects["NetworkPolicy/prod-tollgate-door"]["spec"]
    shops = {"kubernetes.io/metadata.name": "shops"}
    monitoring = {"kubernetes.io/metadata.name": "monitoring"}
    assert [
        ({one["port"] for one in rule["ports"]}, rule["from"])
        for rule in policy["ingress"]
    ] == [
        ({8080}, [{"namespaceSelector": {"matchLabels": shops}}]),
        ({8004}, [{"namespaceSelector": {"matchLabels": monitoring}}]),
    ]
    out = {one["port"] for rule in policy["egress"] for one in rule["ports"]}
    assert out == {53, 8001}
    servers = objects["NetworkPolicy/prod-tollgate-server"]["spec"]["ingress"]
    (decisions,) = [one for one in servers if one["ports"][0]["port"] == 8001]
    components = [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for peer in decisions["from"]
    ]
    assert "door" in components
    assert "door" not in str(ALL["minimal"])
