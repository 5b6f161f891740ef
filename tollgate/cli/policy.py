"""Check, compare and simulate decision policies: `tollgate policy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console
from tollgate.cli.options import Json

if TYPE_CHECKING:
    from tollgate.features.definition import FeatureSpec
    from tollgate.policy import Policy

Spec = Annotated[
    Path | None,
    typer.Option(
        help="features.yaml that the policy is served with.",
        show_default="the released one",
    ),
]

_DIFFERENT = 1  # exit status of a comparison


def check(
    file: Annotated[Path, typer.Argument(help="Path of the policy.yaml to check.")],
    spec: Spec = None,
    as_json: Json = False,
) -> None:
    """
    Check a policy as a server does at load, and print its contents.

    Exit status 2: the policy is invalid; the message gives the line of the file and the
    reason.
    """
    policy = _load(file, _features(spec))
    parts = {
        "labels": len(policy.labels),
        "segments": len(policy.segments) - 1,
        "lists": len(policy.lists),
        "rules": len(policy.rules),
    }
    if as_json:
        console.print_json({"file": file, "sound": True, **parts})
        return
    counts = ", ".join(f"{count} {name}" for name, count in parts.items())
    typer.echo(f"{file}: sound: {counts}")


def diff(
    old: Annotated[Path, typer.Argument(help="Path of the old policy.yaml.")],
    new: Annotated[Path, typer.Argument(help="Path of the new policy.yaml.")],
    as_json: Json = False,
) -> None:
    """
    List the differences between two policies.

    Exit status 0: no difference; 1: at least one; 2: a file cannot be read.
    """

    from tollgate.policy.compare import compare
    from tollgate.policy.document import read_document

    found = compare(read_document(old).raw, read_document(new).raw)
    if as_json:
        console.print_json(found)
    elif not found:
        console.out.print("the same policy")
    for one in () if as_json else found:
        typer.echo(f"{one.where}: {one.what}: {one.words}")
    if found:
        raise typer.Exit(_DIFFERENT)


def simulate(
    new: Annotated[Path, typer.Argument(help="Path of the policy.yaml to simulate.")],
    on: Annotated[
        Path,
        typer.Option(help="Journal folder, or a Parquet file as in docs/policy.md."),
    ],
    against: Annotated[
        Path | None,
        typer.Option(help="Policy to compare with, instead of the recorded decisions."),
    ] = None,
    spec: Spec = None,
    picture: Annotated[
        Path | None, typer.Option(help="Path of the PNG file to write.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate a changed policy on past decisions: more declines, money, segments."""

    from tollgate.cli.policy_tables import outcome_tables
    from tollgate.redecide import compare_policies, draw, read_rows

    features = _features(spec)
    policy = _load(new, features)
    other = None if against is None else _load(against, features)
    past = read_rows(
        on,
        policies=[policy] if other is None else [policy, other],
        feature_names=features.feature_names,
        fields=features.fields,
        amount=features.amount,
    )
    outcome = compare_policies(past, new=policy, old=other)
    if picture is not None:
        draw(outcome, picture)
    if as_json:
        console.print_json(outcome)
        return
    for table in outcome_tables(outcome):
        console.out.print(table, highlight=False)
    if picture is not None:
        console.say(f"drawn: {picture}")


def _features(path: Path | None) -> FeatureSpec:
    """Read the features that a policy may name."""
    from tollgate.cli import pipeline
    from tollgate.features.spec import load_spec

    if path is not None:
        return load_spec(path)
    chosen = console.settings()
    console.require_products(chosen, chosen.products)
    return pipeline.served_spec(chosen.repository_path, product=chosen.product)


def _load(path: Path, spec: FeatureSpec) -> Policy:
    from tollgate.policy import load_policy

    return load_policy(
        path,
        feature_names=spec.feature_names,
        fields=spec.fields,
        id_names=spec.id_names,
        amount=spec.amount,
    )
