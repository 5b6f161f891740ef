"""The chart, rendered by Helm's own engine: objects that a cluster takes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import chart
import helm_python
import pytest
import yaml
from chart_table import table, table_in

from tollgate.metrics import metrics
from tollgate.observability.alerts import rule_files
from tollgate.repository.releases.release_file import product_names

MODELS = chart.HOUSE / "model_repository"
SCHEMA = json.loads((chart.CHART / "values.schema.json").read_text())
BASE = chart.rendered(chart.values_of(chart.BASE))[0]


# What is rendered ---------------------------------------------------------------------


@pytest.mark.parametrize("name", chart.names())
def test_values_of_a_feature_render_as_kept(name: str) -> None:
    """Linted, valid for both Kubernetes versions, and as in tests/helm/golden."""
    assert chart.check(name, BASE) == []


def test_every_golden_file_has_its_values() -> None:
    """None is left over from values that are gone."""
    kept = {path.stem for path in chart.GOLDEN.glob("*")}
    assert kept == set(chart.names())


def test_both_kubernetes_versions_refuse_what_they_do_not_know() -> None:
    """The check can fail: a field that no Deployment has."""
    one = copy.deepcopy(BASE["Deployment/prod-tollgate"])
    one["spec"]["replica"] = 3
    found = chart.problems(one)
    assert [text.partition(":")[0] for text in found] == [
        f"Kubernetes {version}" for version in chart.KUBERNETES
    ]
    assert all("'replica'" in text for text in found)


def test_what_operators_define_is_checked_too() -> None:
    """The check can fail there as well."""
    values = chart.values_of("monitoring")
    monitor = chart.rendered(values)[0]["ServiceMonitor/prod-tollgate"]
    assert chart.problems(monitor) == ()
    monitor["spec"]["endpoint"] = []
    assert "'endpoint' was unexpected" in chart.problems(monitor)[0]


def test_the_oldest_kubernetes_is_the_charts() -> None:
    """What Chart.yaml allows is what is validated."""
    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert about["kubeVersion"] == f">={chart.KUBERNETES[0]}.0-0"


def test_notes_name_what_a_person_does_next() -> None:
    """The test, the addresses, and a warning where nobody may call."""
    _, notes = chart.rendered(chart.values_of(chart.BASE))
    assert "helm test prod --namespace payments --logs" in notes
    assert "prod-tollgate-headless.payments.svc:8001" in notes
    assert "nobody but `helm test` may ask" in notes
    _, notes = chart.rendered(chart.values_of("gateway"))
    assert "prod-tollgate-gateway.payments.svc:443" in notes
    assert "nobody but" not in notes


def test_files_arrive_as_they_are() -> None:
    """nginx's file and dashboards are copies, to the byte and to the value."""
    objects, _ = chart.rendered(
        chart.values_of("gateway") | chart.values_of("monitoring")
    )
    files = chart.CHART / "files"
    gateway = objects["ConfigMap/prod-tollgate-gateway"]["data"]
    for key, name in (("nginx.conf.template", "nginx.conf"), ("90-watch.sh",) * 2):
        assert gateway[key].strip() == (files / "gateway" / name).read_text().strip()
    for path in files.glob("dashboards/*.json"):
        name = f"ConfigMap/prod-tollgate-dashboard-{path.stem}".replace("_", "-")
        assert json.loads(objects[name]["data"][path.name]) == json.loads(
            path.read_text()
        )
        assert objects[name]["metadata"]["labels"]["grafana_dashboard"] == "1"


@pytest.mark.parametrize(
    "select", [{}, {"namespace": "payments", "job": "payments/prod-tollgate"}]
)
def test_rules_are_of_this_installation_alone(select: dict[str, str]) -> None:
    """As `tollgate alerts --select` writes them; where none is, of the namespace."""
    values = chart.values_of("monitoring")
    values["alerts"]["select"] = select
    objects, _ = chart.rendered(values)
    written = rule_files(
        chart.HOUSE / "model_repository",
        products=["fraud"],
        select=select or {"namespace": "payments"},
    )
    for name, text in written.items():
        rules = objects[f"PrometheusRule/prod-tollgate-{name.removesuffix('.yaml')}"]
        assert rules["spec"] == yaml.safe_load(text)
        assert rules["metadata"]["labels"]["release"] == "prometheus"


def test_rules_are_those_of_the_products_served() -> None:
    """Of another product they would tell that nobody serves it; the notes name gaps."""

    def stems(*products: str) -> tuple[set[str], str]:
        values = {"products": list(products), "alerts": {"enabled": True}}
        objects, notes = chart.rendered(values)
        rules = {key for key in objects if key.startswith("PrometheusRule/")}
        before = "PrometheusRule/prod-tollgate-"
        return {key.removeprefix(before) for key in rules}, notes

    known = product_names(MODELS)
    for products in (*((one,) for one in known), known):
        found, notes = stems(*products)
        assert found == {"tollgate", *(f"slo-{one}" for one in products)}
        assert "has no rules" not in notes
    found, notes = stems("fraud", "loans")
    assert found == {"tollgate", "slo-fraud"}
    assert "loans has no rules" in notes


# Values -------------------------------------------------------------------------------


def objects_of(schema: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """List the schemas of objects in a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield where, schema
        for key, value in schema.items():
            yield from objects_of(value, f"{where}/{key}")
    elif isinstance(schema, list):
        for value in schema:
            yield from objects_of(value, where)


def test_the_schema_is_closed() -> None:
    """
    A key that is not known is refused everywhere.

    Open are maps from any name to a text (labels, annotations, files of tables), and
    Helm's own `global`, which a chart around this one may fill.
    """
    for where, one in objects_of(SCHEMA):
        if where == "/properties/global":
            continue
        allowed = one["additionalProperties"]
        if allowed is not False:
            assert set(allowed) <= {"type", "pattern", "$ref"}, where
            assert "properties" not in one, where


def test_every_value_stands_in_values_yaml() -> None:
    """What the schema knows has a default, which people read there and in the table."""

    def keys(schema: dict[str, Any], values: Any, where: str) -> Iterator[str]:
        for key, one in schema.get("properties", {}).items():
            if key == "global":
                continue
            if key not in values:
                yield f"{where}{key}"
                continue
            full = SCHEMA["$defs"].get(one.get("$ref", "").rpartition("/")[2], one)
            yield from keys(full, values[key], f"{where}{key}.")

    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    assert list(keys(SCHEMA, values, "")) == []


JOB = {"name": "a", "product": "shop", "schedule": "0 1 * * *"}
LISTS = {"users": 100}
REFUSED = [
    ({"replicaz": 3}, "'replicaz' not allowed"),
    ({"server": {"resources": {"cpu": "2", "memory": "2Gi", "gpu": 1}}}, "'gpu' not"),
    ({"server": {"resources": {"cpu": "two"}}}, "'two' does not match"),
    ({"server": {"host": "127.0.0.1"}}, "/server/host"),
    (
        {"server": {"extraEnv": [{"name": "A", "value": "1", "secret": "s"}]}},
        "extraEnv",
    ),
    ({"server": {"extraEnv": [{"name": "A"}]}}, "extraEnv"),
    ({"server": {"readinessProduct": "credit"}}, "credit is none of products"),
    ({"products": []}, "minItems"),
    ({"products": ["fraud", "fraud"]}, "items at 0 and 1 are equal"),
    ({"products": ["Fraud"]}, "'Fraud' does not match"),
    ({"repository": {"kind": "git"}}, "/repository/kind"),
    ({"repository": {"kind": "objectStore"}}, "repository.objectStore.url is empty"),
    ({"repository": {"objectStore": {"url": "models"}}}, "'models' does not match"),
    ({"image": {"digest": "sha256:abc"}}, "does not match"),
    ({"store": {"url": "redis://user:password@store"}}, "'url' not allowed"),
    ({"store": {"urlSecret": {"name": "", "key": "url"}}}, "/store/urlSecret/name"),
    ({"store": {"peers": [{}]}}, "minProperties"),
    ({"store": {"port": 70000}}, "maximum"),
    ({"journal": {"enabled": False}}, "has nothing to seal"),
    ({"podSecurity": {"runAsUser": 0}}, "minimum"),
    ({"autoscaling": {"minReplicas": 9, "maxReplicas": 3}}, "is above"),
    ({"autoscaling": {"queueSeconds": 0.012}}, "want string"),
    (
        {
            "autoscaling": {"enabled": True, "underWayRequests": "16"},
            "gateway": {"enabled": True, "inFlight": 16, "callerInFlight": 8},
        },
        "is above half of gateway.inFlight",
    ),
    ({"canary": {"enabled": True, "tag": "1"}}, "canary.gateway.name is empty"),
    ({"canary": {"enabled": True}}, "a canary is another image"),
    ({"canary": {"weight": 101}}, "maximum"),
    ({"gpu": {"tensorrt": {"build": True}}}, "make it tensorrt"),
    ({"stream": {"feeds": "payments"}}, "does not match"),
    ({"stream": {"kafka": {"brokers": "kafka"}}}, "does not match"),
    ({"stream": {"kafka": {"brokers": "a:9093,b:9092"}}}, "b:9092 has another port"),
    (
        {"alarms": {"kafka": {"brokers": "a:9092"}}},
        "a:9092 has another port than alarms",
    ),
    (
        {"alarms": {"enabled": True, "webhook": {"enabled": True}}},
        "alarms.webhook.urlSecret.name or secret.name is empty",
    ),
    ({"jobs": {"materialize": [{"name": "a"}]}}, "missing propert"),
    ({"jobs": {"materialize": [JOB | {"claimName": "c", "lists": LISTS}]}}, "oneOf"),
    ({"jobs": {"materialize": [JOB | {"lists": {"minutes": 5}}]}}, "missing propert"),
    (
        {"jobs": {"materialize": [JOB | {"lists": LISTS, "histories": ["a"]}]}},
        "oneOf",
    ),
    ({"jobs": {"retention": {"keep": "1 year"}}}, "does not match"),
    ({"jobs": {"stressProbe": {"schedule": "daily"}}}, "does not match"),
    ({"gateway": {"auth": "none"}}, "/gateway/auth"),
    ({"tracing": {"rate": 100}}, "tracing.rate needs tracing.endpoint"),
    ({"tracing": {"endpoint": "http://c:4318/v1/traces"}}, "/tracing/endpoint"),
    ({"tracing": {"endpoint": "http://user@c:4318"}}, "does not match"),
    ({"tracing": {"clientCertificate": True}}, "tracing.clientCertificate needs"),
    ({"gateway": {"inFlight": 20}}, "callerInFlight is above gateway.inFlight"),
    ({"gateway": {"bulkInFlight": 0}}, "minimum"),
    (
        {"gateway": {"enabled": True, "upstream": "g:80", "servers": 3}},
        "needs gateway.upstreamEgress",
    ),
    (
        {
            "gateway": {"enabled": True, "upstream": "g:80"},
            "networkPolicy": {"enabled": False},
        },
        "needs gateway.servers",
    ),
    ({"server": {"allocator": "jemalloc"}}, "/server/allocator"),
    ({"alerts": {"select": {"cluster": "it's"}}}, "/alerts/select/cluster"),
    ({"alerts": {"select": {"cluster": ""}}}, "/alerts/select/cluster"),
    ({"alerts": {"select": {"tollgate/region": "a"}}}, "'tollgate/region' does not"),
    ({"alerts": {"select": {"product": "fraud"}}}, "invalid propertyName 'product'"),
    (
        {
            "metrics": {
                "podMonitor": {"enabled": True},
                "serviceMonitor": {"enabled": True},
            }
        },
        "scraped twice",
    ),
    (
        {
            "journal": {"enabled": False},
            "journalWorker": {"enabled": False},
            "jobs": {"retention": {"enabled": True}},
        },
        "there is no journal to keep",
    ),
    (
        {
            "journal": {"enabled": False},
            "journalWorker": {"enabled": False},
            "monitor": {"enabled": True},
        },
        "there is no journal to read",
    ),
]


@pytest.mark.parametrize(
    ("values", "words"), REFUSED, ids=[words for _, words in REFUSED]
)
def test_what_cannot_be_meant_is_refused(values: dict[str, Any], words: str) -> None:
    """By the schema, or by a template in one sentence, before anything is installed."""
    with pytest.raises(helm_python.HelmError) as refused:
        chart.rendered(values)
    assert words in " ".join(str(refused.value).split())


def test_rules_select_by_no_label_of_our_own() -> None:
    """As `tollgate alerts --select` refuses: metrics tell something else by these."""
    select = SCHEMA["properties"]["alerts"]["properties"]["select"]
    own = {label for one in metrics() for label in one.row.labels}
    assert set(select["propertyNames"]["not"]["enum"]) == own | {"le", "severity"}


# The paper ----------------------------------------------------------------------------


def test_the_table_of_values_is_true() -> None:
    """helm/README.md has each value with its default, and a word about most."""
    paper = chart.README.read_text()
    assert table_in(paper, chart.CHART / "values.yaml")
    rows = re.findall(
        r"^\| `([^`]+)` \| `(.*)` \|", table(chart.CHART / "values.yaml"), re.M
    )
    defaults = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    for path, default in rows:
        value = defaults
        for key in path.split("."):
            value = value[key]
        assert json.loads(default) == value, path


def test_each_file_of_values_says_what_it_shows() -> None:
    """Its first line is a comment; the paper names it."""
    paper = chart.README.read_text()
    for path in chart.values_files():
        assert path.read_text().startswith("# "), path
        assert f"`{path.name.removesuffix('-values.yaml')}`" in paper, path
