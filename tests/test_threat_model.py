"""The threat model names tests that exist, and every secret that the code knows."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.main import get_command

from tollgate.cli.app import app
from tollgate.schema import CONTEXT_KEY_VARIABLE
from tollgate.settings import ADDRESSES, PREFIX
from tollgate.store.redis.store_address import TLS_PARAMETERS

HOUSE = Path(__file__).resolve().parent.parent
PAGE = (HOUSE / "docs" / "threat-model.md").read_text()
_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
_SECRET_VALUE = re.compile(r"\b(\w*(?:Secret|PullSecrets))\s*:")
_SECRET_OPTION = re.compile(r"--(.*-)?(token|secret|keys?|password)(-.*)?")


@cache
def functions_of(path: str) -> frozenset[str]:
    """Name the test functions of a file."""
    tree = ast.parse((HOUSE / path).read_text())
    return frozenset(
        one.name
        for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")
    )


def rows() -> list[list[str]]:
    """Read the rows of all tables, without heads and rules."""
    lines = [one for one in PAGE.splitlines() if one.startswith("|")]
    heads = {at - 1 for at, one in enumerate(lines) if set(one) <= set("|- ")}
    heads |= {at + 1 for at in heads}
    kept = [one for at, one in enumerate(lines) if at not in heads]
    return [[cell.strip() for cell in one.strip("|").split("|")] for one in kept]


def test_every_named_test_exists() -> None:
    """File and function."""
    named = _NAMED.findall(PAGE)
    assert len(named) > 60
    absent = [
        f"{path}::{name}"
        for path, name in named
        if not (HOUSE / path).is_file() or name not in functions_of(path)
    ]
    assert absent == []


def test_every_line_names_a_test_or_says_why_there_is_none() -> None:
    """The last cell of each row."""
    found = rows()
    assert len(found) > 60
    for row in found:
        assert _NAMED.search(row[-1]) or row[-1].startswith("none: "), row


def options(command: Any) -> set[str]:
    """Name the options of a command and of those below it."""
    found = {one for each in command.params for one in each.opts}
    for below in getattr(command, "commands", {}).values():
        found |= options(below)
    return found


def secrets() -> list[str]:
    """Name what the code and the chart take for secrets."""
    found = {CONTEXT_KEY_VARIABLE, *ADDRESSES}
    found |= {f"{PREFIX}{one.upper()}" for one in ADDRESSES if one != "otlp_endpoint"}
    found |= {one for one in TLS_PARAMETERS if "key" in one or "password" in one}
    values = (HOUSE / "helm" / "tollgate" / "values.yaml").read_text()
    found |= set(_SECRET_VALUE.findall(values))
    found |= {one for one in options(get_command(app)) if _SECRET_OPTION.fullmatch(one)}
    address = (HOUSE / "tollgate" / "server" / "address.py").read_text()
    found |= set(re.findall(r"^    (admin_secret|private_suffix):", address, re.M))
    return sorted(found)


@pytest.mark.parametrize("secret", secrets())
def test_every_secret_of_the_code_is_on_the_page(secret: str) -> None:
    """Settings with a password, parameters of TLS, options, values of the chart."""
    words = secret.replace("_", " ") if "_" in secret and secret.islower() else secret
    assert secret in PAGE or words in PAGE


def test_the_secrets_of_a_server_are_those_that_are_searched_for() -> None:
    """server.json: a new field there must be judged."""
    from tollgate.server.address import Address

    known = {one.name for one in msgspec.structs.fields(Address)}
    assert {one for one in known if re.search("secret|suffix|key|token", one)} == {
        "admin_secret",
        "private_suffix",
    }
