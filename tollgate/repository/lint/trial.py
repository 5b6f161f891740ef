"""Rule TG320: check that a canary's challenger can be wired into its product."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from tollgate.errors import InputError, RepositoryError
from tollgate.repository.configs import add_canary, merge
from tollgate.repository.findings import Finding
from tollgate.repository.lint.lint_rule import Rule, Severity
from tollgate.repository.lint.view import View
from tollgate.repository.lint.wire_rules import in_data_order
from tollgate.repository.releases.release_file import Release
from tollgate.repository.releases.serving_plan import (
    ServingPlan,
    canary_of,
    plan_serving,
)
from tollgate.repository.wires import Break, Ends, Wires

RULES = (
    Rule(
        code="TG320",
        title="the challenger does not fit the release",
        severity=Severity.ERROR,
        why="A canary is a second model between the features and the decision of the "
        "release, in the configuration that is merged when it is loaded; what does "
        "not fit there is not served.",
        source="docs/contract.md, Releases",
        mend="Give the decision step the optional input, or try the challenger as a "
        "shadow.",
    ),
)
# The other model's output always exists, whether the step needs it or not.
_ALLOWED = "TG121"


def findings(view: View) -> Iterator[Finding]:
    """Merge every product with its challenger and follow the wires."""
    for product in view.products:
        try:
            release = view.snapshot.release(product)
            if canary_of(release) is None:
                continue
            plan_serving(view.snapshot, structs.replace(release, challenger=None))
        except InputError:
            continue  # a finding of another rule
        yield from _trial_findings(view, release)


def _trial_findings(view: View, release: Release) -> Iterator[Finding]:
    try:
        plan = plan_serving(view.snapshot, release)
    except RepositoryError as exc:
        yield Finding(
            code="TG320", file=exc.source, where=exc.where, problem=exc.problem
        )
        return
    file = view.models[release.product].file
    for code, where, problem, at in _wires(plan):
        if code != _ALLOWED:
            yield Finding(code="TG320", file=file, where=where, problem=problem, at=at)


def _wires(plan: ServingPlan) -> Iterator[Break]:
    """Follow the wires of the ensemble with both models in it."""
    merged = merge(plan.ensemble, pins=plan.release.versions)
    if plan.canary is not None:
        add_canary(merged, step=plan.canary.step, version=plan.canary.version)
    ends = {name: Ends.of(config, name=name) for name, config in plan.configs.items()}
    wires = Wires(Ends.of(merged, name=merged.name))
    yield from wires.follow(in_data_order(merged), ends)
