"""Manage policies and their lists: `tollgate policy` and `tollgate lists`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from tollgate.cli import console, running_server
from tollgate.cli.decisions.journal_commands import (
    Keys,
    default_keys,
    opened_chain,
    seconds,
)
from tollgate.cli.options import (
    ActionColumn,
    ItemColumn,
    Json,
    Picture,
    Product,
    State,
    StoreUrl,
    TimeColumn,
    UserColumn,
)
from tollgate.errors import InputError, RepositoryError

if TYPE_CHECKING:
    from tollgate.audit.review.list_responses import ItemEvents
    from tollgate.features.spec.spec_definition import FeatureSpec
    from tollgate.policy import Policy
    from tollgate.redecide import PolicyComparison
    from tollgate.settings import Settings
    from tollgate.store.list_editing import ListStore


# Format the tables of `policy simulate`.


def outcome_tables(outcome: PolicyComparison, *, amount: bool) -> Iterator[Any]:
    """
    Build the tables, below a line with the most important result.

    Args:
        amount: True if the rows have an amount; without it, no money is shown.
    """
    more = [
        f"{word} {outcome.more(level):+,}"
        + amount * f" ({outcome.more_cents(level) / 100:+,.2f})"
        for level, word in enumerate(outcome.outcomes)
    ]
    rows = f"{outcome.changed:,} of {outcome.rows:,} rows"
    yield f"{rows} decided otherwise; {', '.join(more)}"
    if outcome.left_out:
        yield f"{outcome.left_out:,} rows left out: too little of them was stored"
    yield _matrix(outcome, amount=amount)
    if len(outcome.segments) > 1:
        yield _segments(outcome, amount=amount)
    yield _rules(outcome, amount=amount)


def _money(cents: int) -> str:
    return f"{cents / 100:,.2f}"


def _matrix(outcome: PolicyComparison, *, amount: bool) -> Table:
    table = console.number_table("before ╲ after", *outcome.outcomes)
    for before, name in enumerate(outcome.outcomes):
        table.add_row(
            name,
            *(
                f"{rows:,}" + amount * f" ({_money(outcome.cents[before][after])})"
                for after, rows in enumerate(outcome.matrix[before])
            ),
        )
    return table


def _segments(outcome: PolicyComparison, *, amount: bool) -> Table:
    words = outcome.outcomes
    last = [f"{words[-1]}, money"] if amount else []
    table = console.number_table("segment", "rows", *words, *last)
    for part in outcome.segments:
        counts = (
            f"{old:,} → {new:,}"
            for old, new in zip(part.before, part.after, strict=True)
        )
        money = [_money(sums[-1]) for sums in (part.cents_before, part.cents_after)]
        last = [" → ".join(money)] if amount else []
        table.add_row(escape(part.name), f"{part.rows:,}", *counts, *last)
    return table


def _rules(outcome: PolicyComparison, *, amount: bool) -> Table:
    names = ["rule", "owner", "held before", "holds", "of these changed"]
    table = console.number_table(*names, *(["money"] if amount else []))
    for rule in outcome.rules:
        table.add_row(
            escape(rule.name),
            escape(rule.owner),
            "" if rule.before is None else f"{rule.before:,}",
            f"{rule.after:,}",
            f"{rule.otherwise:,}",
            *([_money(rule.cents)] if amount else []),
        )
    return table


Spec = Annotated[
    Path | None,
    typer.Option(
        help="features.yaml that the policy is served with.",
        show_default="the released one",
    ),
]

Repository = Annotated[
    str | None,
    typer.Option(
        help="Model repository with the policy.", show_default="model_repository"
    ),
]

_DIFFERENT = 1  # exit status of a comparison


def check(
    file: Annotated[Path, typer.Argument(help="Path of the policy.yaml to check.")],
    spec: Spec = None,
    product: Product = None,
    as_json: Json = False,
) -> None:
    """
    Check a policy as a server does at load, and print its contents.

    Exit status 2: the policy is invalid; the message gives the line of the file and the
    reason.
    """
    policy = _load(file, _features(spec, product))
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

    from tollgate.policy.policy_difference import compare
    from tollgate.policy.policy_document import read_document

    found = compare(read_document(old).raw, read_document(new).raw)
    if as_json:
        console.print_json(found)
    elif not found:
        console.result("the same policy")
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
    events: Annotated[
        Path | None,
        typer.Option(
            help="Estimate the responses to the lists of a policy that ranks: table of "
            "what users did later, with --user, --item and --time."
        ),
    ] = None,
    user: UserColumn = None,
    item: ItemColumn = None,
    event_time: TimeColumn = None,
    action: ActionColumn = None,
    within: Annotated[
        str,
        typer.Option(help="Time after a list in which an event is a response to it."),
    ] = "1d",
    keys: Keys = None,
    product: Product = None,
    repository: Repository = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """
    Simulate a changed policy on past decisions: changes, money, segments.

    With `--events`: estimate from the explored lists of a journal how often users would
    have responded to the lists of the policy.
    """
    if events is not None:
        from tollgate.cli.table_files import read_item_events

        if user is None or item is None or event_time is None:
            problem = "needs --user, --item and --time, its columns"
            raise InputError("--events", problem)
        if picture is not None:
            raise InputError("--picture", "does not go with --events")
        _estimate(
            _policies(new, against, _features(spec, product, repository)),
            on=on,
            events=read_item_events(
                events, user=user, item=item, time=event_time, action=action
            ),
            within_s=seconds(within, flag="--within"),
            keys=keys or default_keys(on),
            product=product,
            repository=repository,
            as_json=as_json,
        )
        return

    columns = {"--user": user, "--item": item, "--time": event_time, "--action": action}
    for option, value in columns.items():
        if value is not None:
            raise InputError(option, "goes with --events")

    from tollgate.audit.chain.links import link_paths
    from tollgate.audit.releases.archived_release import recorded_outcomes
    from tollgate.redecide import compare_policies, draw, read_rows

    features = _features(spec, product, repository)
    policy, other = _policies(new, against, features)
    past = read_rows(
        on,
        policies=[policy] if other is None else [policy, other],
        feature_names=features.feature_names,
        fields=features.fields,
        amount=features.amount,
        recorded=recorded_outcomes(on) if on.is_dir() and link_paths(on) else {},
    )
    outcome = compare_policies(past, new=policy, old=other)
    if picture is not None:
        draw(outcome, picture)
    if as_json:
        console.print_json(outcome)
        return
    for table in outcome_tables(outcome, amount=features.amount):
        console.out.print(table, highlight=False)
    if picture is not None:
        console.say(f"drawn: {picture}")


def _policies(
    new: Path, against: Path | None, features: FeatureSpec
) -> tuple[Policy, Policy | None]:
    return _load(new, features), None if against is None else _load(against, features)


def _estimate(
    policies: tuple[Policy, Policy | None],
    *,
    on: Path,
    events: ItemEvents,
    within_s: float,
    keys: Path,
    product: str | None,
    repository: str | None,
    as_json: bool,
) -> None:
    """Estimate responses to the lists of a policy, and print them."""
    from tollgate.audit.releases.archive import ReleaseArchive
    from tollgate.audit.releases.off_policy import estimate_lists
    from tollgate.audit.worker.pseudonyms import FILE, Subjects

    if not (keys / FILE).is_file():
        raise InputError(keys, "holds no keys of subjects, which find users' lists")
    chosen = console.settings(
        product_is_known=False, product=product, repository=repository
    )
    chain = opened_chain(on, None, product=chosen.product)
    subjects = Subjects(keys)
    with console.progress("ranking again") as advance:
        found = estimate_lists(
            chain,
            ReleaseArchive(chain),
            repository=chosen.repository_path,
            new=policies[0],
            old=policies[1],
            events=events,
            subjects=subjects,
            within_s=within_s,
            progress=advance,
        )
    subjects.close()
    if as_json:
        console.print_json(found)
        return
    console.result(
        f"{found.lists:,} explored lists of {found.users:,} users; "
        f"{found.same_positions:.1%} of the positions show the same item; "
        "responses per list:"
    )
    table = console.number_table(
        "action", "before", "after", "self-normalized", "difference"
    )
    for one in found.actions:
        values = (one.before, one.after, one.self_normalized, one.difference)
        cells = [
            f"{value.value:.3f}\n{value.low:.3f}…{value.high:.3f}" for value in values
        ]
        table.add_row(one.action, *cells)
    console.out.print(table)
    console.result(
        f"mean weight {found.mean_weight:.3f}, effective sample size "
        f"{found.effective_sample_size:,.0f} positions"
    )
    for reason, count in found.left_out.items():
        console.say(f"left out: {count:,} lists {reason}")


def _features(
    path: Path | None, product: str | None, repository: str | None = None
) -> FeatureSpec:
    """Read the features that a policy may name."""
    from tollgate.features.spec.feature_spec import load_spec
    from tollgate.repository.releases.served_versions import served_spec

    if path is not None:
        return load_spec(path)
    chosen = console.settings(product=product, repository=repository)
    console.require_products(chosen, chosen.products)
    return served_spec(chosen.repository_path, product=chosen.product)


def _load(path: Path, spec: FeatureSpec) -> Policy:
    from tollgate.policy import load_policy

    return load_policy(
        path,
        feature_names=spec.feature_names,
        fields=spec.fields,
        id_names=spec.id_names,
        amount=spec.amount,
    )


Name = Annotated[str, typer.Argument(help="Name of the list in the policy.")]
Ids = Annotated[list[str], typer.Argument(help="Ids to add or remove.")]
Early = Annotated[
    bool, typer.Option("--early", help="Accept a list that no served policy uses yet.")
]

_TIMEOUT_S = 10.0  # for one command; only a person waits for it


def add_ids(
    name: Name,
    ids: Ids,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    early: Early = False,
    as_json: Json = False,
) -> None:
    """Add ids to a list; the next decision uses them."""
    chosen = _settings(product, repository, state, store_url)
    with _open_list(name, chosen, early=early) as (store, key):
        done = store.add(key, [one.encode() for one in ids])
        if as_json:
            console.print_json(_change_report(name, store.size(key), added=done))
            return
        _print_change(
            name, store.size(key), f"{done:,} added, {len(ids) - done:,} were in it"
        )


def remove_ids(
    name: Name,
    ids: Ids,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    early: Early = False,
    as_json: Json = False,
) -> None:
    """Remove ids from a list."""
    chosen = _settings(product, repository, state, store_url)
    with _open_list(name, chosen, early=early) as (store, key):
        done = store.remove(key, [one.encode() for one in ids])
        if as_json:
            console.print_json(_change_report(name, store.size(key), removed=done))
            return
        _print_change(
            name, store.size(key), f"{done:,} removed, {len(ids) - done:,} were not"
        )


def load_list(
    name: Name,
    file: Annotated[Path, typer.Argument(help="Text file with one id per line.")],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Remove ids that the file does not contain."),
    ] = False,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    early: Early = False,
    as_json: Json = False,
) -> None:
    """Add the ids of a file to a list; --replace removes all others."""
    ids = set(_read(file))
    chosen = _settings(product, repository, state, store_url)
    with _open_list(name, chosen, early=early) as (store, key):
        added, removed = store.add(key, ids), 0
        if replace:
            # Remove after adding: at no moment does an id that stays go missing.
            others = [one for one in store.members(key) if one not in ids]
            removed = store.remove(key, others)
        if as_json:
            changed = _change_report(
                name, store.size(key), added=added, removed=removed
            )
            console.print_json(changed)
            return
        done = f"{added:,} added" + (f", {removed:,} removed" if replace else "")
        _print_change(name, store.size(key), done)


def show_list(
    name: Name,
    ids: Annotated[
        list[str] | None,
        typer.Argument(help="Ids to look up; if omitted, all ids are printed."),
    ] = None,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    early: Early = False,
    as_json: Json = False,
) -> None:
    """
    Print the ids of a list, or check whether it holds the given ones.

    Exit status 1: an id that was given is not in the list.
    """
    chosen = _settings(product, repository, state, store_url)
    with _open_list(name, chosen, early=early) as (store, key):
        if not ids:
            members = [one.decode(errors="replace") for one in store.members(key)]
            if as_json:
                console.print_json({"list": name, "ids": members})
            for member in () if as_json else members:
                typer.echo(member)
            return
        held = store.holds(key, [one.encode() for one in ids])
    if as_json:
        held_by_id = dict(zip(ids, map(bool, held), strict=True))
        console.print_json({"list": name, "holds": held_by_id})
        if not all(held):
            raise typer.Exit(1)
        return
    for one, inside in zip(ids, held, strict=True):
        typer.echo(f"{one}: {'in' if inside else 'not in'} {name}")
    if not all(held):
        raise typer.Exit(1)


def _read(file: Path) -> Iterable[bytes]:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as exc:
        raise InputError(file, f"cannot be read: {exc.strerror}") from exc
    return [one.strip() for one in lines if one.strip()]


def _change_report(
    name: str, size: int, *, added: int = 0, removed: int = 0
) -> dict[str, str | int]:
    return {"list": name, "added": added, "removed": removed, "size": size}


def _print_change(name: str, size: int, done: str) -> None:
    console.result(f"{name}: {done}; {size:,} now")


def _settings(
    product: str | None,
    repository: str | None,
    state: str | None,
    store_url: str | None,
) -> Settings:
    return console.settings(
        product=product, repository=repository, state=state, store_url=store_url
    )


@contextmanager
def _open_list(
    name: str, chosen: Settings, *, early: bool
) -> Iterator[tuple[ListStore, bytes]]:
    """Find the list, which the served policy must name, and open the store."""
    from tollgate.store.id_lists import list_key
    from tollgate.store.list_editing import ListStore

    console.require_products(chosen, chosen.products)
    if not early:
        _require_named(name, chosen.repository_path, product=chosen.product)
    store = ListStore(running_server.store_url(chosen), timeout_s=_TIMEOUT_S)
    try:
        yield store, list_key(chosen.product, name)
    finally:
        store.close()


def _require_named(name: str, repository: Path, *, product: str) -> None:
    from tollgate.repository.releases.served_versions import served_policy

    policy = served_policy(repository, product=product)
    names = [one.name for one in policy.lists]
    if policy.ranking is not None and policy.ranking.stock:
        names.append(policy.ranking.stock)
    if name not in names:
        known = f"it has {', '.join(names)}" if names else "it has none"
        problem = f"{name!r} is no list of the served policy: {known}; or add --early"
        raise RepositoryError(repository, problem, where="lists")
