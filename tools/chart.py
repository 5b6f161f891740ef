"""
Render, lint and validate the Helm chart: `make chart`.

Helm's own engine renders each helm/tollgate/ci/*-values.yaml; every object is held
against the schemas of the oldest and the newest Kubernetes, and against the files of
tests/helm/golden. `--write` renews those files and the table of values in
helm/README.md.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import yaml
from chart_table import table_in, with_table

HOUSE = Path(__file__).resolve().parent.parent
CHART = HOUSE / "helm" / "tollgate"
GOLDEN = HOUSE / "tests" / "helm" / "golden"
README = HOUSE / "helm" / "README.md"
# Custom resources of operators, in the parts that this chart uses; Kubernetes' own
# schemas do not have them.
OPERATORS = Path(__file__).resolve().parent / "operator_schemas.json"
KUBERNETES = (
    "1.31",
    "1.37",
)  # the oldest that Chart.yaml allows, the newest known here
BASE = "minimal"  # the values that the others' golden files are compared with
RELEASE, NAMESPACE = "prod", "payments"
_NOTES = "templates/NOTES.txt"

# libyaml's is many times as fast, where PyYAML has it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Objects = dict[str, dict[str, Any]]


def names() -> list[str]:
    """Name the files of values, without their ending; the base first."""
    found = {path.name.removesuffix("-values.yaml") for path in values_files()}
    return [BASE, *sorted(found - {BASE})]


def values_files() -> list[Path]:
    """List the files of values."""
    return sorted((CHART / "ci").glob("*-values.yaml"))


def values_of(name: str) -> dict[str, Any]:
    """Read a file of values."""
    text = (CHART / "ci" / f"{name}-values.yaml").read_text()
    return yaml.safe_load(text) or {}


def rendered(
    values: Mapping[str, Any], *, release: str = RELEASE
) -> tuple[Objects, str]:
    """
    Render the chart with some values, as a release of some name.

    Returns:
        The objects by KIND/NAME, in the order of their names; and the notes.

    Raises:
        helm_python.HelmError: The schema refuses them, or a template does.
    """
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(dict(values), name=release, namespace=NAMESPACE)
    found: Objects = {}
    notes = ""
    for path, text in files.items():
        if path.endswith(_NOTES):
            notes = text
            continue
        for one in yaml.load_all(text, Loader=_LOADER):
            if one is not None:
                name = f"{one['kind']}/{one['metadata']['name']}"
                if name in found:
                    raise ValueError(f"{name} is there twice")
                found[name] = one
    return dict(sorted(found.items())), notes


def lint(values: Mapping[str, Any]) -> list[str]:
    """Say what `helm lint --strict` finds above information."""
    found = helm_python.lint(CHART, dict(values), strict=True, kube_version="v1.37.0")
    lines = [one["error"] for one in found["messages"] if one["severity"] > 1]
    return [*lines, *found["errors"]]


def problems(one: Mapping[str, Any]) -> tuple[str, ...]:
    """Say why an object is none that a cluster would take."""
    return _problems(json.dumps(one))


@functools.cache  # most objects are the same with most values
def _problems(text: str) -> tuple[str, ...]:
    return tuple(_found_in(json.loads(text)))


def _found_in(one: dict[str, Any]) -> Iterator[str]:
    operators = json.loads(OPERATORS.read_text())
    schema = operators.get(f"{one['apiVersion']} {one['kind']}")
    if schema is not None:
        full = schema | {"$defs": operators["$defs"]}
        for error in jsonschema.Draft202012Validator(full).iter_errors(one):
            yield f"{error.json_path}: {error.message}"
        return
    for version in KUBERNETES:
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"Kubernetes {version}: {error.json_path}: {error.message}"


def golden_text(name: str, objects: Objects, base: Objects) -> str:
    """
    Write a rendering's golden file: all of the base, of others the differences.

    In place of a file of helm/tollgate/files stands its name.
    """
    lines = [f"# helm/tollgate/ci/{name}-values.yaml; `make chart` compares.\n"]
    for key in sorted(objects.keys() | base.keys()):
        ours, theirs = _lines(objects.get(key)), _lines(base.get(key))
        if name == BASE or not theirs:
            lines += [f"\n=== {key}\n", *ours]
        elif not ours:
            lines.append(f"\n=== {key}: not here\n")
        elif ours != theirs:
            changes = list(difflib.unified_diff(theirs, ours, n=2))
            lines += [f"\n=== {key}: other than with {BASE}\n", *changes[2:]]
    return "".join(lines)


def _lines(one: dict[str, Any] | None) -> list[str]:
    if one is None:
        return []
    text = yaml.safe_dump(_shown(one), width=100, allow_unicode=True)
    return text.splitlines(keepends=True)


def _shown(one: dict[str, Any]) -> dict[str, Any]:
    """Leave out what other tests keep, and what changes with it."""
    texts = {path.read_text().strip(): path for path in _files()}
    if one["kind"] == "ConfigMap":
        data = {
            key: f"<{texts[text.strip()].relative_to(CHART)}>"
            if text.strip() in texts
            else text
            for key, text in one["data"].items()
        }
        return one | {"data": data}
    if one["kind"] == "PrometheusRule":
        same = [
            f"<{path.relative_to(CHART)}>"
            for path in _files()
            if path.parent.name == "alerts"
            and yaml.safe_load(path.read_text()) == one["spec"]
        ]
        return one | {"spec": same[0] if same else one["spec"]}
    return json.loads(
        re.sub(r'("checksum/\w+": ")[0-9a-f]{64}', r"\1…", json.dumps(one))
    )


def _files() -> list[Path]:
    return [path for path in (CHART / "files").rglob("*") if path.is_file()]


def check(name: str, base: Objects) -> list[str]:
    """Say what is wrong with the chart, rendered with one file of values."""
    try:
        objects, _ = rendered(values_of(name))
    except (helm_python.HelmError, ValueError) as error:
        return [str(error)]
    found = [f"helm lint: {one}" for one in lint(values_of(name))]
    for key, one in objects.items():
        found += [f"{key}: {problem}" for problem in problems(one)]
    golden = GOLDEN / f"{name}.txt"
    if not golden.exists() or golden.read_text() != golden_text(name, objects, base):
        found.append(f"is not as in {golden.relative_to(HOUSE)}; --write renews it")
    return found


def write() -> None:
    """Renew the golden files and the table of values."""
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.glob("*.txt"):
        path.unlink()
    base, _ = rendered(values_of(BASE))
    for name in names():
        text = golden_text(name, rendered(values_of(name))[0], base)
        (GOLDEN / f"{name}.txt").write_text(text)
    README.write_text(with_table(README.read_text(), CHART / "values.yaml"))


def main(arguments: list[str]) -> int:
    """Check it all, or write; the exit status."""
    if arguments == ["--write"]:
        write()
    bad = 0
    base, _ = rendered(values_of(BASE))
    for name in names():
        found = check(name, base)
        bad += len(found)
        for problem in found:
            print(f"{name}: {problem}", file=sys.stderr)
    if not table_in(README.read_text(), CHART / "values.yaml"):
        bad += 1
        print("helm/README.md: its table is not of values.yaml", file=sys.stderr)
    with helm_python.Chart.load(CHART) as chart:
        version = chart.version
    print(
        f"chart {version}: {len(names())} files of values, Helm "
        f"{helm_python.helm_sdk_version()}, Kubernetes {' and '.join(KUBERNETES)}: "
        + (f"{bad} problems" if bad else "sound")
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
