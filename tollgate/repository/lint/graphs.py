"""Rule TG405: check that the server's onnxruntime reads the models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError
from tollgate.repository.findings import Finding
from tollgate.repository.lint.lint_rule import Rule, Severity
from tollgate.repository.lint.view import ONNX_BACKEND, View
from tollgate.repository.models.model_files import MODEL_FILE, parse_onnx
from tollgate.repository.models.targets import TARGETS, Target

RULES = (
    Rule(
        code="TG405",
        title="a model is newer than the server's onnxruntime reads",
        severity=Severity.ERROR,
        why="onnxruntime refuses operator sets and file formats newer than it knows, "
        "so the model does not load.",
        source="tried for each release: tollgate/repository/models/targets.py",
        mend="Convert it for this server (`tollgate convert --target RELEASE`), or "
        "serve with a newer one.",
    ),
)


class Header(msgspec.Struct, frozen=True):
    """
    The header of an ONNX file.

    Attributes:
        ir: Version of its format.
        opsets: Operator set by domain; the default domain is the empty name.
    """

    ir: int
    opsets: dict[str, int]


def findings(view: View, *, release: str) -> Iterator[Finding]:
    """
    Compare every version's model with the formats that a release reads.

    Args:
        view: The repository.
        release: Release of Triton, year and month; one between two known ones is
            assumed to read what the newer of them reads, so that no readable model is
            reported.
    """
    target = _target_of(release)
    if target is None:
        return
    for model, config in view.configured():
        if model.backend != ONNX_BACKEND:
            continue
        for version in model.versions:
            name = config.default_model_filename or MODEL_FILE
            path = model.directory / str(version) / name
            if path.is_file():
                yield from _graph_findings(path, target=target, release=release)


def _target_of(release: str) -> Target | None:
    """Look up a release, or the next newer one that is known."""
    newer = [name for name in sorted(TARGETS) if name >= release]
    return TARGETS[newer[0]] if newer else None


def _graph_findings(path: Path, *, target: Target, release: str) -> Iterator[Finding]:
    header = read_header(path)
    if header is None:
        problems = ["cannot be read as an ONNX model"]
    else:
        problems = [
            f"operator set {domain or 'ai.onnx'} {version}: Triton {release} reads "
            f"up to {target.newest[domain]}"
            for domain, version in sorted(header.opsets.items())
            if version > target.newest.get(domain, version)
        ]
        if header.ir > target.ir:
            problems.append(
                f"IR version {header.ir}: Triton {release} reads up to {target.ir}"
            )
    for problem in problems:
        yield Finding(code="TG405", file=str(path), where="", problem=problem)


def read_header(path: Path) -> Header | None:
    """
    Read format and operator sets of an ONNX file.

    Returns:
        The header; None if the file cannot be read, or is no ONNX model.
    """
    try:
        model = parse_onnx(path)
    except RepositoryError:
        return None
    opsets = {
        "" if one.domain == "ai.onnx" else one.domain: one.version
        for one in model.opset_import
    }
    ir = model.ir_version
    return Header(ir=ir, opsets=opsets) if ir and opsets else None
