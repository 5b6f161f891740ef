"""
Rules for products: find everything that Triton finds late in a product, or never.

Starting a server, publishing a model and activating a release make these checks too;
they read files and start nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate import schema
from tollgate.errors import (
    HookError,
    PolicyError,
    RepositoryError,
    SpecError,
    TollgateError,
)
from tollgate.features.spec.description import duration_text
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.features.spec.spec_definition import Field
from tollgate.policy import POLICY_FILE
from tollgate.ranking.candidates import CANDIDATES, feature_names
from tollgate.ranking.catalogue import (
    CATALOGUE_FILE,
    RETRIEVAL_FILE,
    Catalogue,
    segment_field_problem,
)
from tollgate.repository.findings import Finding, collecting
from tollgate.repository.hashes import SHORT_DIGITS, hash_file
from tollgate.repository.models.artifact_file import (
    Artifact,
    read_artifact,
    require_same_files,
    word_differences,
)
from tollgate.repository.models.model_files import (
    MODEL_FILE,
    onnx_findings,
    plan_findings,
)
from tollgate.repository.product_models import Product
from tollgate.repository.releases.release_file import (
    Release,
    release_path,
    require_steps,
    spec_hash_text,
    verify_release,
)
from tollgate.repository.releases.served_versions import load_policy_of
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.versions import list_versions
from tollgate.repository.wires import Break, Ends, Tensor, Wires, tensors_of
from tollgate.schema import ARTIFACT_FILE

# Check a config.pbtxt against our rules for batches, queues, versions and warm-up.
#
# Each rule prevents a failure that was observed; its sentence names the failure.

PYTHON_BACKEND = "python"
ANY_LENGTH = -1  # dimension of a tensor
EVENTS_USE: str = "events"  # of a declared field that only events have, not requests
_TIMEOUT_FIELDS = (
    "timeout_action",
    "default_timeout_microseconds",
    "allow_timeout_override",
)
DELAY = "dynamic_batching.max_queue_delay_microseconds"
# A batch's requests reach the next step one after the other. A step after the one that
# batches requests may wait this long for the last of them.
REGATHER_US = 500

_STALLS = (
    "switches off prefetching, and Triton's batcher then stalls for 500 ms and more; "
    "callers' deadlines bound the queue"
)

# Code of the rule, field, problem.
RuleBreak = tuple[str, str, str]


def rule_findings(product: Product, *, release: Release | None) -> list[Finding]:
    """Check a product's configurations; a release that cannot be read is None."""
    try:
        model_step = product.model_step
    except RepositoryError:
        model_step = ""  # an undefined role is a finding of another rule
    findings: list[Finding] = []
    for name, config in [*product.steps.items(), (product.name, product.ensemble)]:
        file = str(product.config_path(name))
        broken = list(_general_breaks(config))
        if name == product.name:
            findings += _pin_findings(config, file=file, release=release)
        else:
            broken += _step_breaks(config, is_model=name == model_step)
            broken += second_delay(name, config, steps=product.steps)
        findings += [
            Finding(code=code, file=file, where=where, problem=problem)
            for code, where, problem in broken
        ]
    return findings


def _general_breaks(config: ModelConfig) -> Iterator[RuleBreak]:
    """Yield violations of the rules for ensemble and steps alike."""
    if config.max_batch_size != schema.MAX_BATCH_ROWS:
        problem = f"{config.max_batch_size} must be {schema.MAX_BATCH_ROWS}"
        yield "TG206", "max_batch_size", problem
    policy = config.version_policy.WhichOneof("policy_choice")
    if policy in ("latest", "all"):
        yield (
            "TG301",
            "version_policy",
            f'"{policy}" unloads or mixes versions when one is dropped in; leave it '
            "out, the release pins versions",
        )
    if config.response_cache.enable and config.HasField("ensemble_scheduling"):
        problem = "would answer with decisions on old features; remove it"
        yield "TG402", "response_cache", problem


def _pin_findings(
    config: ModelConfig, *, file: str, release: Release | None
) -> Iterator[Finding]:
    """Yield pins of the ensemble that contradict the release."""
    for step in config.ensemble_scheduling.step:
        pinned = release.versions.get(step.model_name) if release else None
        if step.model_version not in (-1, pinned):
            yield Finding(
                code="TG303",
                file=file,
                where=f"{step.model_name}: model_version",
                problem=f"{step.model_version} must be -1: the release pins versions",
                at=f"ensemble_scheduling.step[{step.model_name}].model_version",
            )


def _step_breaks(config: ModelConfig, *, is_model: bool) -> Iterator[RuleBreak]:
    """Yield violations of the rules for one step."""
    if not config.HasField("dynamic_batching"):
        problem = "is missing: requests would run one at a time"
        yield "TG207", "dynamic_batching", problem
    else:
        yield from queue_breaks(config)
    if config.model_warmup and config.backend == PYTHON_BACKEND:
        problem = "runs a Python step on made-up requests; only the model step has it"
        yield "TG401", "model_warmup", problem
    if config.response_cache.enable and not is_model:
        yield "TG402", "response_cache", "would answer with old features; remove it"


def second_delay(
    name: str, config: ModelConfig, *, steps: Mapping[str, ModelConfig]
) -> Iterator[RuleBreak]:
    """Yield a delay next to a longer one, unless it only lets a batch come together."""
    delays = {step: delay_us(one) for step, one in steps.items()}
    longest = max(delays, key=lambda step: delays[step])
    own_us = delay_us(config)
    if name != longest and own_us > REGATHER_US:
        yield (
            "TG203",
            DELAY,
            f"{own_us} must be at most {REGATHER_US}: {longest} has {delays[longest]}, "
            "and a lone request pays both",
        )


def delay_us(config: ModelConfig) -> int:
    """Read the queue delay of a step, µs."""
    return int(config.dynamic_batching.max_queue_delay_microseconds)


def queue_breaks(config: ModelConfig) -> Iterator[RuleBreak]:
    """Yield limits and timeouts of queues: either stalls Triton's batcher."""
    batching = config.dynamic_batching
    if batching.priority_levels:
        yield "TG202", "dynamic_batching.priority_levels", _STALLS
    policies = {"default_queue_policy": batching.default_queue_policy} | {
        f"priority_queue_policy[{level}].value": policy
        for level, policy in batching.priority_queue_policy.items()
    }
    for name, policy in policies.items():
        where = f"dynamic_batching.{name}"
        if policy.max_queue_size:
            yield "TG202", f"{where}.max_queue_size", _STALLS
        for field in _TIMEOUT_FIELDS:
            if getattr(policy, field):
                yield (
                    "TG201",
                    f"{where}.{field}",
                    "queue timeouts can leave a model refusing every request; "
                    "deadlines belong to the caller",
                )


# Check that a product's tensors connect, end to end: names, types, shapes.

# Types of a declared field on the wire; NaN and an empty text mean that a row has none.
FIELD_KINDS = {"number": "TYPE_FP64", "category": "TYPE_STRING"}


def wiring_findings(product: Product) -> list[Finding]:
    """
    Follow every tensor through the ensemble.

    Returns:
        One finding per mismatch, in the order in which data flows; all of them name the
        ensemble's file, because that is where the wires are.
    """
    file = str(product.config_path(product.name))
    tensors = {
        name: Ends.of(config, name=name) for name, config in product.steps.items()
    }
    wires = Wires(Ends.of(product.ensemble, name=product.name))
    breaks = [*wires.follow(product.ensemble.ensemble_scheduling.step, tensors)]
    breaks += _answer_breaks(wires.ensemble.outputs, product.answer_types)
    if product.ranks:
        breaks += _request_id_breaks(product)
    return [
        Finding(code=code, file=file, where=where, problem=problem, at=at)
        for code, where, problem, at in breaks
    ]


def field_findings(
    product: Product, *, step: str, fields: Sequence[Field]
) -> list[Finding]:
    """Check that step and ensemble have an optional input for every declared field."""
    ensemble, config = product.ensemble, product.steps[step]
    sources = input_map(product, step)
    inputs = {
        product.name: tensors_of(ensemble.input, origin="config.pbtxt"),
        step: tensors_of(config.input, origin="config.pbtxt"),
    }
    wire = f"ensemble_scheduling.step[{step}]"
    missing: list[tuple[str, str, str, str]] = []
    for field in fields:
        names = {step: field.name, product.name: sources.get(field.name, field.name)}
        for model, name in names.items():
            found = _field_problem(inputs[model].get(name), FIELD_KINDS[field.type])
            missing.append((model, f"input {name}", f"input[{name}]", found))
        if field.name not in sources:
            found = f"input {field.name}, which features.yaml declares, is not mapped"
            missing.append((product.name, f"{step}: input_map", wire, found))
    return [
        Finding(
            code="TG314",
            file=str(product.config_path(model)),
            where=where,
            problem=found,
            at=at,
        )
        for model, where, at, found in missing
        if found
    ]


def _field_problem(tensor: Tensor | None, kind: str) -> str:
    """Compare an input with a declared field's requirement; empty if they agree."""
    wanted = f"features.yaml declares it: {kind} [1], optional"
    if tensor is None:
        return f"is missing: {wanted}"
    if (tensor.kind, tensor.dims) != (kind, (1,)):
        return f"{tensor} must be {kind} [1] by features.yaml"
    return "" if tensor.optional else f"must be optional: {wanted}"


def _answer_breaks(
    declared: dict[str, Tensor] | None, types: Mapping[str, str]
) -> Iterator[Break]:
    """Compare the ensemble's outputs with those that clients expect."""
    outputs = declared or {}
    for name, tensor in outputs.items():
        where, at = f"output {name}", f"output[{name}]"
        expected = types.get(name)
        size = ANY_LENGTH if name in schema.LIST_OUTPUTS else 1
        if expected is None:
            yield "TG120", where, "is not part of the answer that clients know", at
        elif (tensor.kind, tensor.dims) != (expected, (size,)):
            yield "TG120", where, f"{tensor} must be {expected} [{size}]", at
    for name in types.keys() - outputs.keys():
        yield (
            "TG120",
            f"output {name}",
            "is part of the answer and is missing",
            "output",
        )


def _request_id_breaks(product: Product) -> Iterator[Break]:
    """Check that the first step gets the id of the request as its transaction id."""
    try:
        step = product.features_step
    except RepositoryError:
        return  # a finding of another rule
    mapped = input_map(product, step).get(schema.TRANSACTION_ID)
    if mapped not in (None, schema.REQUEST_ID):
        where = f"{step}: input_map {schema.TRANSACTION_ID}"
        problem = f"is {mapped}, must be {schema.REQUEST_ID}: clients send that"
        at = f"ensemble_scheduling.step[{step}].input_map[{schema.TRANSACTION_ID}]"
        yield "TG325", where, problem, at


def input_map(product: Product, step: str) -> dict[str, str]:
    """Return the tensors of the ensemble that a step gets, by the step's own names."""
    return next(
        dict(one.input_map)
        for one in product.ensemble.ensemble_scheduling.step
        if one.model_name == step
    )


# Check that the files of the pinned versions fit the configurations and each other.

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
    fields = [one for one in spec.fields if one.use != EVENTS_USE]
    findings += field_findings(product, step=step, fields=fields)
    model = directories[product.model_step]
    decision = directories[product.decision_step]
    names = spec.feature_names
    if product.ranks:
        catalogue = _catalogue_of(directories[step], decision, findings=findings)
        names = feature_names(catalogue) if catalogue else ()
        problem = segment_field_problem(catalogue, fields) if catalogue else ""
        if problem:
            file = str(directories[step] / CATALOGUE_FILE)
            findings.append(Finding(code="TG326", file=file, where="", problem=problem))
        findings += _candidate_findings(product, names)
    findings += _model_findings(model, product, spec=spec, names=names)
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


def _spec_hash_problem(named: str | None, spec: FeatureSpec) -> str:
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
    directory: Path, product: Product, *, spec: FeatureSpec, names: Sequence[str]
) -> list[Finding]:
    """
    Compare the model, the record of its origin, and the spec.

    Args:
        names: Names of the numbers that the model gets; empty if they are not known.
    """
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
            for where, problem in (
                *_file_breaks(artifact, hash_file(path)),
                *_feature_breaks(artifact, names, product=product),
                *_spec_breaks(artifact, spec, product=product),
            )
        ]
        require_same_files(directory, artifact.files)
    return findings


def _policy_findings(
    directory: Path, product: Product, *, spec: FeatureSpec
) -> list[Finding]:
    """Compare a policy with the model: classes, or lists of items."""
    path = directory / POLICY_FILE
    policy = load_policy_of(directory, spec)
    labels = policy.labels
    if product.ranks != (policy.ranking is not None):
        problem = (
            f"is missing: {product.name} answers with items"
            if product.ranks
            else f"orders items, and {product.name} answers with a decision"
        )
        return [Finding(code="TG327", file=str(path), where="ranking", problem=problem)]
    if product.ranks and len(labels) != 1:
        problem = f"{len(labels)}, must be one number: the best item's relevance"
        return [Finding(code="TG327", file=str(path), where="labels", problem=problem)]
    if product.ranks:
        return []
    config = product.steps[product.model_step]
    (dims,) = (one.dims for one in config.output if one.name == schema.PROBABILITIES)
    if list(dims) == [len(labels)]:
        return []
    problem = f"{len(labels)} for a model with {schema.PROBABILITIES} {list(dims)}"
    return [Finding(code="TG315", file=str(path), where="labels", problem=problem)]


# Check what only a product that ranks has: candidates, and a catalogue of items.


def _candidate_findings(product: Product, names: Sequence[str]) -> list[Finding]:
    """
    Check the tensors of the candidates.

    The wires between the steps have other rules (TG104).

    Args:
        names: Features of a candidate; empty if they are not known.
    """
    step, model = product.features_step, product.model_step
    first, scored = product.steps[step], product.steps[model]
    outputs = tensors_of(first.output, origin="config.pbtxt")
    candidates, features = CANDIDATES, len(names) or ANY_LENGTH
    problems = [
        (
            step,
            f"output {schema.CANDIDATE_FEATURES}",
            _ranking_problem(
                outputs.get(schema.CANDIDATE_FEATURES),
                "TYPE_FP32",
                sizes=(candidates, features),
            ),
        ),
        (
            step,
            f"output {schema.RANKING_CONTEXT}",
            _ranking_problem(
                outputs.get(schema.RANKING_CONTEXT), "TYPE_UINT8", sizes=(ANY_LENGTH,)
            ),
        ),
        (
            model,
            f"input {schema.CANDIDATE_FEATURES}",
            _ranking_problem(
                tensors_of(scored.input, origin="config.pbtxt").get(
                    schema.CANDIDATE_FEATURES
                ),
                "TYPE_FP32",
                sizes=(candidates, features),
            ),
        ),
        (
            model,
            f"output {schema.RELEVANCE}",
            _ranking_problem(
                tensors_of(scored.output, origin="config.pbtxt")[schema.RELEVANCE],
                "TYPE_FP32",
                sizes=(candidates,),
            ),
        ),
    ]
    excluded = tensors_of(first.input, origin="config.pbtxt").get(schema.EXCLUDE)
    if excluded is not None and (
        (excluded.kind, excluded.dims) != (_ID_KIND, (1,)) or not excluded.optional
    ):
        problem = f"{excluded} must be {_ID_KIND} [1], optional"
        problems.append((step, f"input {schema.EXCLUDE}", problem))
    return [
        Finding(
            code="TG325",
            file=str(product.config_path(name)),
            where=where,
            problem=problem,
            at="[".join(where.split(" ", 1)) + "]",
        )
        for name, where, problem in problems
        if problem
    ]


def _ranking_problem(
    tensor: Tensor | None, kind: str, *, sizes: tuple[int, ...]
) -> str:
    """
    Compare a declared tensor with that of a product that ranks; empty if they agree.

    Args:
        sizes: Dimensions of a row; -1 for any fixed number.
    """
    shown = f"[{', '.join('a number' if one < 0 else str(one) for one in sizes)}]"
    if tensor is None:
        return f"is missing: a product that ranks has {kind} {shown}"
    agrees = len(tensor.dims) == len(sizes) and all(
        found > 0 and wanted in (found, ANY_LENGTH)
        for found, wanted in zip(tensor.dims, sizes, strict=True)
    )
    if tensor.kind == kind and agrees:
        return ""
    return f"{tensor} must be {kind} {shown}, by the catalogue of the product"


def _catalogue_of(
    first: Path, last: Path, *, findings: list[Finding]
) -> Catalogue | None:
    """Read the catalogue that both Python steps must have; None if it is unusable."""
    catalogue, copied = first / CATALOGUE_FILE, last / CATALOGUE_FILE
    missing = [
        _missing(path, "the items of the product, or their retrieval", code="TG326")
        for path in (catalogue, first / RETRIEVAL_FILE, copied)
        if not path.is_file()
    ]
    findings += missing
    if not missing and hash_file(catalogue) != hash_file(copied):
        problem = f"is not {catalogue}: the two steps would mean other items"
        findings.append(
            Finding(code="TG326", file=str(copied), where="", problem=problem)
        )
    with collecting(findings, code="TG326"):
        return Catalogue.load(first) if catalogue.is_file() else None
    return None


def _file_breaks(artifact: Artifact, sha256: str) -> Iterator[tuple[str, str]]:
    """Yield where the record differs from the model file."""
    if artifact.sha256 != sha256:
        named, found = artifact.sha256[:SHORT_DIGITS], sha256[:SHORT_DIGITS]
        yield "sha256", f"{MODEL_FILE} has changed: record {named}…, file {found}…"


def _feature_breaks(
    artifact: Artifact, names: Sequence[str], *, product: Product
) -> Iterator[tuple[str, str]]:
    """Yield where the record names other features than the model gets."""
    if not names or artifact.features == tuple(names):
        return
    origin = CATALOGUE_FILE if product.ranks else SPEC_FILE
    pairs = zip(artifact.features, names, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if place is None:
        have, need = len(artifact.features), len(names)
        yield "features", f"{have} names, {origin} has {need}"
    else:
        was, now = artifact.features[place], names[place]
        yield f"features[{place}]", f'"{was}" is "{now}" in {origin}'


def _spec_breaks(
    artifact: Artifact, spec: FeatureSpec, *, product: Product
) -> Iterator[tuple[str, str]]:
    """Yield where the record differs from the spec."""
    if not product.ranks:  # a candidate's features are no features of the spec
        yield from word_differences(artifact.categories, spec)
    # Last: differences in names and words explain better why the hash differs.
    if artifact.spec_hash != spec_hash_text(spec.spec_hash):
        yield "spec_hash", _spec_hash_problem(artifact.spec_hash, spec)


# Check a product as a whole, by all rules above.


def check(
    snapshot: RepositorySnapshot, *, product: str, release: Release | None = None
) -> list[Finding]:
    """
    Find everything that would keep a product from loading or from deciding right.

    This covers the wiring of the ensemble, our rules for each configuration, the
    release with its hashes, and the contents of the versions it pins (of the newest
    versions, if the release cannot be read).

    Args:
        snapshot: The model repository, with the named configuration to check.
        release: Release to check instead of release.json.

    Returns:
        The findings, wiring first; empty if the repository is valid.

    Raises:
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    return _collect([], snapshot, product=product, given=release)


def check_staged(
    snapshot: RepositorySnapshot, *, product: str, staged: Path
) -> list[Finding]:
    """
    Find the problems of a product as if a staged model were in its place.

    Like `check`, with the staged version instead of the pinned one of the model step,
    and with the version of the features that it was made for, if the repository has it.
    The product may still be without a release, and without another model.

    Returns:
        The findings, wiring first.

    Raises:
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    return _collect([], snapshot, product=product, staged=staged)


def require_sound(
    snapshot: RepositorySnapshot, *, product: str, release: Release | None = None
) -> None:
    """
    Fail if the repository has a finding, with another release in it if one is given.

    Raises:
        RepositoryError: The first finding.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    for finding in check(snapshot, product=product, release=release):
        raise finding.as_error()


def product_findings(snapshot: RepositorySnapshot, *, product: str) -> list[Finding]:
    """Do as `check`, with errors of features.yaml and policy.yaml as findings."""
    findings: list[Finding] = []
    with (
        collecting(findings, code="TG317", caught=SpecError),
        collecting(findings, code="TG322", caught=HookError),
        collecting(findings, code="TG318", caught=PolicyError),
    ):
        _collect(findings, snapshot, product=product)
    return [*findings, *_rate_findings(snapshot, product)]


def _rate_findings(snapshot: RepositorySnapshot, product: str) -> Iterator[Finding]:
    """Yield the entities whose stated rate exceeds their cap in a window's reach."""
    try:
        step = snapshot.product(product).features_step
        release = snapshot.current_release(product)
        newest = max(list_versions(snapshot.folder, step), default=0)
        version = release.versions[step] if release else newest
        path = snapshot.folder / step / str(version) / SPEC_FILE
        spec = load_spec(path)
    except TollgateError:
        return  # other findings report it
    for one in spec.entities:
        reach_us = one.windows_us[-1] + one.delay_us + spec.lateness_us
        events = round(one.rate_per_s * reach_us / 1e6)
        if one.tiles is None and events > one.cap:
            remedy = one.fit.remedy or "it cannot have a hop: " + one.fit.obstacle
            yield Finding(
                code="TG323",
                file=str(path),
                where=f"entities.{one.name}.rate",
                problem=f"is {events:,} events of an id of {one.name} within "
                f"{duration_text(reach_us)} (widest window, delay and lateness); the "
                f"store holds {one.cap:,}: {remedy}",
            )


def _collect(
    findings: list[Finding],
    snapshot: RepositorySnapshot,
    *,
    product: str,
    staged: Path | None = None,
    given: Release | None = None,
) -> list[Finding]:
    """
    Add all findings, on the pinned versions or with a staged model, and return them.

    Errors of features.yaml and policy.yaml are raised; findings made before them stay
    in the list.
    """
    with collecting(findings, code="TG001"):
        models = snapshot.product(product)
        findings += wiring_findings(models)
        release = None
        release_problems: list[Finding] = []
        released = release_path(snapshot.folder, product).exists()
        if given or staged is None or released:
            release = _usable_release(
                snapshot, given, product=models, problems=release_problems
            )
        findings += rule_findings(models, release=release)
        try:
            with collecting(findings, code="TG122"):
                findings += _content_findings(models, release=release, staged=staged)
        finally:
            # Last: a finding on the content says more about a changed file than its
            # hash.
            findings += release_problems
    return findings


def _usable_release(
    snapshot: RepositorySnapshot,
    given: Release | None,
    *,
    product: Product,
    problems: list[Finding],
) -> Release | None:
    """Read and verify the release; None if it does not pin this product's steps."""
    release = None
    with collecting(problems, code="TG310"):
        found = given or snapshot.release(product.name)
        path = release_path(snapshot.folder, product.name)
        require_steps(path, found.versions, product=product)
        release = found
        verify_release(snapshot.folder, release)
    return release


def _content_findings(
    models: Product, *, release: Release | None, staged: Path | None
) -> list[Finding]:
    """Check the pinned versions; of a step whose pinned one is missing, the newest."""
    findings: list[Finding] = []
    given = {models.model_step: staged} if staged else {}
    newest: dict[str, int] = {}
    for name in [*models.steps, models.name]:
        there = list_versions(models.repository, name)
        if there:
            newest[name] = there[-1]
        elif name not in given:
            file = str(models.repository / name)
            problem = "has no version: Triton needs a directory 1, for ensembles too"
            findings.append(Finding(code="TG002", file=file, where="", problem=problem))
    if findings:
        return findings
    pinned = release.versions if release else {}
    directories = dict(given)
    for step in models.steps.keys() - given.keys():
        directory = models.repository / step / str(pinned.get(step))
        if not directory.is_dir():
            directory = models.repository / step / str(newest[step])
        directories[step] = directory
    if staged and (others := _features_of(staged, models, directories)):
        # The model is for features that will be released with it, not for the current
        # release's.
        directories[models.features_step], release = others, None
    return content_findings(models, directories=directories, release=release)


def _features_of(
    staged: Path, models: Product, directories: Mapping[str, Path]
) -> Path | None:
    """Find the version of the features that a model was made for, if it is another."""
    step = models.features_step
    try:
        wanted = read_artifact(staged).spec_hash
    except RepositoryError:
        return None  # the next reader of the record reports it
    newest_first = reversed(list_versions(models.repository, step))
    versions = [models.repository / step / str(one) for one in newest_first]
    for directory in (directories[step], *versions):
        with contextlib.suppress(SpecError):  # an unreleased one may be incomplete
            spec = load_spec(directory / SPEC_FILE)
            if spec_hash_text(spec.spec_hash) == wanted:
                return None if directory == directories[step] else directory
    return None
