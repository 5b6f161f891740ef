"""Rules TG301 and TG302: compare loaded versions with those an ensemble names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.repository.findings import Finding
from tollgate.repository.lint.lint_rule import DOCS, Rule, Severity
from tollgate.repository.lint.view import Model, View

RULES = (
    Rule(
        code="TG301",
        title="a pinned step loads its latest versions, or all",
        severity=Severity.WARNING,
        in_product=Severity.ERROR,
        why="With latest (which is also what is done when the policy is left out) the "
        "next load after a version was dropped in unloads the pinned one, the ensemble "
        "becomes UNAVAILABLE, and loading the step again does not bring it back.",
        source="measured on 2.51: docs/contract.md, Releases; "
        + DOCS
        + "user_guide/model_configuration.html",
        mend="version_policy { specific { versions: [ N ] } } on the step. In a "
        "product leave the policy out: the release adds it.",
    ),
    Rule(
        code="TG302",
        title="an ensemble asks for a version that is not loaded",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble: the required version is not loaded.",
        source="tried on 2.51; " + DOCS + "user_guide/ensemble_models.html",
        mend="Name a version that has a directory and that version_policy keeps.",
    ),
)
_LATEST = -1  # model_version of a step that takes the newest


def findings(view: View) -> Iterator[Finding]:
    """Compare the pins of every ensemble with the versions that its steps load."""
    for model, config in view.ensembles():
        for step in config.ensemble_scheduling.step:
            own = view.models.get(step.model_name)
            if step.model_version == _LATEST or own is None:
                continue
            if model.name in view.in_products:
                continue  # its release pins and loads versions
            if problem := _missing(own, step.model_version):
                yield Finding(
                    code="TG302",
                    file=model.file,
                    where=f"{step.model_name}: model_version",
                    problem=problem,
                    at=f"ensemble_scheduling.step[{step.model_name}].model_version",
                )
            elif own.config is not None:
                yield from _policy_findings(own, own.config, step=step, by=model.name)


def _missing(own: Model, version: int) -> str:
    """Explain why a version is not loaded; empty if it is."""
    if version not in own.versions:
        return f"{version} has no directory in {own.name}"
    loaded = _loaded_versions(own)
    if version not in loaded:
        names = ", ".join(map(str, loaded))
        return f"{version} is not loaded: version_policy of {own.name} keeps {names}"
    return ""


def _loaded_versions(own: Model) -> Sequence[int]:
    """List the versions of a model that its policy loads."""
    if own.config is None:
        return own.versions[-1:]
    policy = own.config.version_policy
    match policy.WhichOneof("policy_choice"):
        case "specific":
            return sorted(policy.specific.versions)
        case "all":
            return own.versions
        case _:
            return own.versions[-max(policy.latest.num_versions, 1) :]


def _policy_findings(
    own: Model, config: ModelConfig, *, step: Any, by: str
) -> Iterator[Finding]:
    policy = config.version_policy.WhichOneof("policy_choice")
    if policy == "specific":
        return
    stated = f'"{policy}"' if policy else "left out, which means latest,"
    yield Finding(
        code="TG301",
        file=own.file,
        where="version_policy",
        problem=f"{stated} while {by} asks for version {step.model_version}",
        at="version_policy",
    )
