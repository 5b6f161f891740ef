"""The gateway's configuration: values into the template, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tollgate.errors import InputError
from tollgate.gateway.template import TEMPLATE, Gateway, render

PAPER = Path(__file__).parents[3] / "docs" / "gateway.md"
OPTIONS: dict[str, Any] = {
    "state": Path("/state"),
    "upstream": "fraud:8001",
    "listen": "127.0.0.1:8443",
    "health_listen": "127.0.0.1:8444",
    "tls_cert": Path("/tls/tls.crt"),
    "tls_key": Path("/tls/tls.key"),
    "keys": Path("/keys/keys"),
}


def test_every_value_has_its_place() -> None:
    """The template asks for all values, and for no other; the paper names them."""
    asked = set(re.findall(r"\$\{(\w+)\}", TEMPLATE.read_text()))
    assert asked == set(Gateway(**OPTIONS).values())
    assert asked <= set(re.findall(r"`(GATEWAY_\w+)`", PAPER.read_text()))


def test_what_nginx_calls_variables_stays() -> None:
    """As the image's envsubst with its filter: ${GATEWAY_…} and nothing else."""
    template, made = TEMPLATE.read_text(), render(Gateway(**OPTIONS))
    assert "${" not in made.replace("${GATEWAY_…}", "")
    assert made.count("$") == template.count("$") - len(
        re.findall(r"\$\{GATEWAY_[A-Z_]+\}", template)
    )
    assert "server fraud:8001;" in made


@pytest.mark.system("envsubst")
def test_envsubst_makes_the_same() -> None:
    """The program that the official image calls."""
    values = Gateway(**OPTIONS).values()
    names = " ".join(f"${{{name}}}" for name in values)
    done = subprocess.run(
        ["envsubst", names],
        input=TEMPLATE.read_text(),
        env=values | {"PATH": os.defpath},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == render(Gateway(**OPTIONS))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"upstream": "a; }:1"}, "GATEWAY_UPSTREAM"),
        ({"tls_cert": Path("/with space")}, "GATEWAY_TLS_CERT"),
        ({"max_body": "lots"}, "max_body"),
        ({"keys": None}, "api_keys"),
        ({"listen": "127.0.0.1"}, "listen: '127.0.0.1' is not address:port"),
        ({"health_listen": "127.0.0.1:http"}, "health_listen"),
        ({"upstream": "fraud:80010"}, "upstream"),
        ({"auth": "mtls"}, "client_ca"),
        ({"auth": "both", "client_ca": Path("/ca"), "keys": None}, "api_keys"),
    ],
)
def test_a_value_that_is_more_than_a_value_is_refused(
    changes: dict[str, Any], words: str
) -> None:
    """Nothing gets into the configuration by way of a value."""
    with pytest.raises(InputError, match=words):
        render(Gateway(**(OPTIONS | changes)))


def test_a_certificate_is_asked_for_only_where_one_is_needed() -> None:
    """With keys alone nginx asks for none, and has a file to open all the same."""
    values = Gateway(**OPTIONS).values()
    assert values["GATEWAY_VERIFY_CLIENT"] == "off"
    assert values["GATEWAY_CLIENT_CA"] == "/tls/tls.crt"
    values = msgspec.structs.replace(
        Gateway(**OPTIONS), auth="mtls", client_ca=Path("/ca"), keys=None
    ).values()
    assert values["GATEWAY_VERIFY_CLIENT"] == "optional"
    assert (values["GATEWAY_CLIENT_CA"], values["GATEWAY_KEYS"]) == ("/ca", "/dev/null")


def test_an_unknown_place_and_an_absent_template_are_named(tmp_path: Path) -> None:
    """By file and name."""
    path = tmp_path / "nginx.conf"
    path.write_text("listen ${GATEWAY_PORT};")
    with pytest.raises(InputError, match="GATEWAY_PORT: has no value"):
        render(Gateway(**OPTIONS), template=path)
    with pytest.raises(InputError, match="name another template"):
        render(Gateway(**OPTIONS), template=tmp_path / "absent")
