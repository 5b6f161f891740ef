"""
The names that users hold stay as they are, however the code is rearranged.

`public_names.json` lists them: metrics with their labels, tensors and their types,
bits, keys and layouts of files, request parameters, environment variables, commands,
and the imports that stand in published files. A new name is added to the list; a name
that goes or changes needs an ADR. `python -m tests.test_public_names` prints the list
of this checkout.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import typer
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

import tollgate
import tollgate.steps
import tollgate.testing
from tollgate import schema
from tollgate.audit.chain.links import Link
from tollgate.cli.app import app
from tollgate.features.spec.spec_document import RawSpec
from tollgate.features.windows.entity_entries import ENTRY, HEADER, VALUE_VERSION
from tollgate.metrics import metrics
from tollgate.policy.policy_document import RawPolicy
from tollgate.repository.releases.release_file import Release
from tollgate.repository.releases.release_history import Entry
from tollgate.repository.slo import Slo
from tollgate.server.address import Address
from tollgate.server.serving.copy_slots import Slot
from tollgate.server.serving.loaded import ServingRecord
from tollgate.settings import Settings
from tollgate.store.stored_decisions import DECIDED, DECIDED_VERSION

CHECKOUT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("public_names.json")
REPOSITORY = CHECKOUT / "model_repository"
FILES = {
    "features.yaml": RawSpec,
    "link of the journal": Link,
    "policy.yaml": RawPolicy,
    "release history": Entry,
    "release.json": Release,
    "served product": ServingRecord,
    "server.json": Address,
    "slo.yaml": Slo,
    "slot.json": Slot,
    "tollgate.yaml": Settings,
}
LAYOUTS = {
    "context": schema.context_dtype(("customer", "terminal"), ("channel",)),
    "earlier decision": DECIDED,
    "entity value, entry": ENTRY,
    "entity value, header": HEADER,
}


def metric_labels() -> dict[str, list[str]]:
    return {f"{one.page}: {one.row.name}": sorted(one.row.labels) for one in metrics()}


def tensors() -> dict[str, dict[str, str]]:
    found = {}
    for path in sorted(REPOSITORY.glob("*/config.pbtxt")):
        config = text_format.Parse(path.read_text(), ModelConfig())
        for way, some in (("input", config.input), ("output", config.output)):
            found[f"{path.parent.name} {way}"] = {
                one.name: f"{DataType.Name(one.data_type)} {list(one.dims)}"
                for one in some
            }
    return found


def keys_of(kind: type[msgspec.Struct]) -> dict[str, list[str]]:
    """List the keys of a file, and of each object in it, by the path to it."""
    document = msgspec.json.schema(kind)
    kinds = document.get("$defs", {})
    found: dict[str, list[str]] = {}

    def visit(node: Any, path: str) -> None:
        if isinstance(node, list):
            for one in node:
                visit(one, path)
        elif isinstance(node, dict):
            if "$ref" in node:
                name = node["$ref"].rpartition("/")[2]
                if path not in found:
                    visit(kinds[name], path)
                return
            properties = node.get("properties")
            if properties is not None:
                found[path] = sorted(properties)
                for key, value in properties.items():
                    visit(value, f"{path}.{key}".lstrip("."))
            for key in ("items", "additionalProperties", "anyOf", "prefixItems"):
                visit(node.get(key), path)

    visit(document, "")
    return found


def layout_of(dtype: np.dtype[np.void]) -> list[list[Any]]:
    return json.loads(json.dumps(dtype.descr))  # type: ignore[no-any-return]


def commands() -> list[str]:
    def walk(command: Any, path: str) -> Iterator[str]:
        inner = getattr(command, "commands", {})
        if not inner:
            yield path
        for name in inner:
            yield from walk(inner[name], f"{path} {name}".strip())

    return sorted(walk(typer.main.get_command(app), ""))


def environment_variables() -> list[str]:
    """List those that files of the checkout name; `$` and Helm's templates included."""
    found: set[str] = set()
    for top in ("tollgate", "clients", "converters", "helm", "docker"):
        for path in (CHECKOUT / top).rglob("*"):
            if path.suffix in (".py", ".yaml", ".yml", ".tpl", ".sh", ".conf", ""):
                text = path.read_text() if path.is_file() else ""
                found |= set(re.findall(r"\bTOLLGATE_[A-Z_]*[A-Z]\b", text))
    fields = {f"TOLLGATE_{name.upper()}" for name in Settings.__struct_fields__}
    return sorted(found | fields)


def script_imports() -> dict[str, list[str]]:
    """
    List our modules, and their names, that scripts of products import.

    Today's templates write some; the others are in scripts that users have already.
    """
    found: dict[str, set[str]] = {
        module: set(names)
        for module, names in json.loads(LIST.read_text())["imports of scripts"].items()
    }
    for path in (CHECKOUT / "tollgate" / "product" / "templates").glob("*.py.j2"):
        for module, names in re.findall(
            r"^from ((?:tollgate|converters|clients)[\w.]*) import (\w[\w, ]*)$",
            path.read_text(),
            re.MULTILINE,
        ):
            found.setdefault(module, set()).update(re.split(", *", names))
    return {module: sorted(names) for module, names in sorted(found.items())}


def public_names() -> dict[str, Any]:
    upper = {name: value for name, value in vars(schema).items() if name.isupper()}
    return {
        "commands": commands(),
        "decisions": {one.name: one.value for one in schema.Decision},
        "degraded bits": {str(one.name): one.value for one in schema.Degraded},
        "environment variables": environment_variables(),
        "imports": {
            "tollgate": sorted(tollgate.__all__),
            "tollgate.steps": sorted(tollgate.steps.__all__),
            "tollgate.testing": sorted(tollgate.testing.__all__),
        },
        "imports of scripts": script_imports(),
        "keys of files": {name: keys_of(kind) for name, kind in FILES.items()},
        "layouts": {name: layout_of(dtype) for name, dtype in LAYOUTS.items()},
        "layout versions": {
            "context": schema.CONTEXT_VERSION,
            "earlier decision": DECIDED_VERSION,
            "entity value": VALUE_VERSION,
        },
        "metrics": metric_labels(),
        "request parameters and headers": sorted(
            upper[name]
            for name in (
                *("DRY_RUN", "DEADLINE_US", "STORE_DEADLINE_MS"),
                *("CLASS_HEADER", "BULK", "ARRIVED_HEADER"),
            )
        ),
        "step parameters": sorted(
            value for name, value in upper.items() if name.endswith("_PARAMETER")
        ),
        "tensors": tensors(),
    }


def test_names_that_users_hold_do_not_change() -> None:
    """Not one is missing, changed, or new without being in the list."""
    listed, now = json.loads(LIST.read_text()), public_names()
    assert now.keys() == listed.keys()
    for kind, names in now.items():
        assert names == listed[kind], kind


def test_scripts_that_users_have_find_what_they_import() -> None:
    """A training script of an earlier version still runs."""
    imports = json.loads(LIST.read_text())["imports of scripts"]
    assert {"converters.baseline", "tollgate.server.publishing"} < imports.keys()
    for module, names in imports.items():
        found = importlib.import_module(module)
        assert [name for name in names if not hasattr(found, name)] == [], module


if __name__ == "__main__":
    json.dump(public_names(), sys.stdout, indent=1, sort_keys=True)
    print()
