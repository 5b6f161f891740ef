"""Check that the files of the pinned versions fit the configurations and each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tollgate import schema
from tollgate.features.spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy import POLICY_FILE
from tollgate.repository.artifact import (
    ARTIFACT_FILE,
    Artifact,
    read_artifact,
    require_same_files,
)
from tollgate.repository.findings import Finding, collecting
from tollgate.repository.hashes import SHORT_DIGITS, hash_file
from tollgate.repository.onnx_model import MODEL_FILE, onnx_findings
from tollgate.repository.plan import plan_findings
from tollgate.repository.product import Product
from tollgate.repository.release import Release, release_path, spec_hash_text
from tollgate.repository.rules import PYTHON_BACKEND
from tollgate.repository.told import load_policy_of
from tollgate.repository.vocabulary import word_differences
from tollgate.repository.wires import Tensor, tensors_of
from tollgate.repository.wiring import field_findings

STEP_FILE = "model.py"
_INPUT_KINDS = {schema.AMOUNT: "TYPE_FP64", schema.EVENT_TIME: "TYPE_INT64"}
_ID_KIND = "TYPE_STRING"


def content_findings(
    product: Product,
    *,
    directories: Mapping[str, Path],
    release: Release | None,
) -> list[Finding]:
    """
    Check the version directories of one release.

    Args:
        product: The configurations.
        directories: Version directory per step; they exist.
        release: The release; None if it cannot be read.

    Raises:
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    findings: list[Finding] = []
    for name, config in product.steps.items():
        path = directories[name] / STEP_FILE
        if config.backend == PYTHON_BACKEND and not path.is_file():
            findings.append(_missing(path, "the step's code", code="TG003"))
    step = product.features_step
    spec = load_spec(directories[step] / SPEC_FILE)
    findings += _spec_findings(product, spec=spec)
    findings += field_findings(product, step=step, fields=spec.fields)
    model = directories[product.model_step]
    findings += _model_findings(model, product, spec=spec)
    decision = directories[product.decision_step]
    findings += _policy_findings(decision, product, spec=spec)
    if release and release.spec_hash != spec_hash_text(spec.spec_hash):
        file = str(release_path(product.repository, product.name))
        problem = _spec_hash_problem(release.spec_hash, spec)
        findings.append(
            Finding(code="TG311", file=file, where="spec_hash", problem=problem)
        )
    return findings


def _missing(path: Path, what: str, *, code: str) -> Finding:
    """Return the finding for a missing file."""
    return Finding(code=code, file=str(path), where="", problem=f"is missing: {what}")


def _spec_hash_problem(named: str, spec: FeatureSpec) -> str:
    """Describe a hash that belongs to another feature spec."""
    actual = spec_hash_text(spec.spec_hash)
    return f"{named} is not features.yaml's {actual}: made for another spec"


def _spec_findings(product: Product, *, spec: FeatureSpec) -> list[Finding]:
    """Compare the feature spec with the tensors of the feature step."""
    step = product.features_step
    file = str(product.config_path(step))
    config = product.steps[step]
    inputs = tensors_of(config.input, origin="config.pbtxt")
    outputs = tensors_of(config.output, origin="config.pbtxt")
    context_bytes = schema.context_dtype(spec.entity_names, spec.field_names).itemsize
    expected = {
        ("input", name): (_INPUT_KINDS.get(name, _ID_KIND), 1) for name in spec.columns
    } | {
        ("output", schema.FEATURES): ("TYPE_FP32", len(spec.feature_names)),
        ("output", schema.CONTEXT): ("TYPE_UINT8", context_bytes),
    }
    if schema.EXACT_FEATURES in outputs:
        exact = ("TYPE_FP64", len(spec.feature_names))
        expected["output", schema.EXACT_FEATURES] = exact
    actual = {("input", name): one for name, one in inputs.items()} | {
        ("output", name): one for name, one in outputs.items()
    }
    problems = {
        one: _tensor_problem(actual.get(one), kind, size=size)
        for one, (kind, size) in expected.items()
    }
    if not spec.amount and schema.AMOUNT in inputs:
        problems["input", schema.AMOUNT] = "features.yaml says `amount: false`"
    return [
        Finding(
            code="TG314",
            file=file,
            where=f"{side} {name}",
            problem=problem,
            at=f"{side}[{name}]",
        )
        for (side, name), problem in problems.items()
        if problem
    ]


def _tensor_problem(tensor: Tensor | None, kind: str, *, size: int) -> str:
    """Compare a declared tensor with the spec's requirement; empty if they agree."""
    if tensor is None:
        return f"is missing: features.yaml needs {kind} [{size}]"
    if (tensor.kind, tensor.dims) != (kind, (size,)):
        return f"{tensor} must be {kind} [{size}] by features.yaml"
    return ""


def _model_findings(
    directory: Path, product: Product, *, spec: FeatureSpec
) -> list[Finding]:
    """Compare the model, the record of its origin, and the spec."""
    path = directory / MODEL_FILE
    if not path.is_file():
        return [_missing(path, "the model", code="TG313")]
    config = product.steps[product.model_step]
    findings = [*onnx_findings(path, config), *plan_findings(directory, config)]
    record = str(directory / ARTIFACT_FILE)
    with collecting(findings, code="TG312"):
        artifact = read_artifact(directory)
        findings += [
            Finding(code="TG312", file=record, where=where, problem=problem)
            for where, problem in _artifact_breaks(artifact, hash_file(path), spec=spec)
        ]
        require_same_files(directory, artifact.files)
    return findings


def _policy_findings(
    directory: Path, product: Product, *, spec: FeatureSpec
) -> list[Finding]:
    """Compare the classes a policy names with those the model has."""
    path = directory / POLICY_FILE
    labels = load_policy_of(directory, spec).labels
    config = product.steps[product.model_step]
    (dims,) = (one.dims for one in config.output if one.name == schema.PROBABILITIES)
    if list(dims) == [len(labels)]:
        return []
    problem = f"{len(labels)} for a model with {schema.PROBABILITIES} {list(dims)}"
    return [Finding(code="TG315", file=str(path), where="labels", problem=problem)]


def _artifact_breaks(
    artifact: Artifact, sha256: str, *, spec: FeatureSpec
) -> Iterator[tuple[str, str]]:
    """Yield where the record differs from the model file and the spec."""
    if artifact.sha256 != sha256:
        named, found = artifact.sha256[:SHORT_DIGITS], sha256[:SHORT_DIGITS]
        yield "sha256", f"{MODEL_FILE} has changed: record {named}…, file {found}…"
    if artifact.features != spec.feature_names:
        pairs = zip(artifact.features, spec.feature_names, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if place is None:
            have, need = len(artifact.features), len(spec.feature_names)
            yield "features", f"{have} names, features.yaml has {need}"
        else:
            was, now = artifact.features[place], spec.feature_names[place]
            yield f"features[{place}]", f'"{was}" is "{now}" in features.yaml'
    yield from word_differences(artifact.categories, spec)
    # Last: differences in names and words explain better why the hash differs.
    if artifact.spec_hash != spec_hash_text(spec.spec_hash):
        yield "spec_hash", _spec_hash_problem(artifact.spec_hash, spec)
