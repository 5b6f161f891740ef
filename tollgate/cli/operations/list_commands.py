"""Manage allow and deny lists: `tollgate lists add|remove|show|load`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console, running_server
from tollgate.cli.options import Json, State, StoreUrl
from tollgate.errors import InputError, RepositoryError

if TYPE_CHECKING:
    from tollgate.store.list_editing import ListStore

Name = Annotated[str, typer.Argument(help="Name of the list in the policy.")]
Ids = Annotated[list[str], typer.Argument(help="Ids to add or remove.")]
Repository = Annotated[
    str | None,
    typer.Option(
        help="Model repository with the policy.", show_default="model_repository"
    ),
]
Early = Annotated[
    bool, typer.Option("--early", help="Accept a list that no served policy uses yet.")
]

_TIMEOUT_S = 10.0  # for one command; only a person waits for it


def add(
    name: Name,
    ids: Ids,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    early: Early = False,
    as_json: Json = False,
) -> None:
    """Add ids to a list; the next decision uses them."""
    with _open_list(name, repository, state, store_url, early=early) as (store, key):
        done = store.add(key, [one.encode() for one in ids])
        if as_json:
            console.print_json(_change_report(name, store.size(key), added=done))
            return
        _print_change(
            name, store.size(key), f"{done:,} added, {len(ids) - done:,} were in it"
        )


def remove(
    name: Name,
    ids: Ids,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    early: Early = False,
    as_json: Json = False,
) -> None:
    """Remove ids from a list."""
    with _open_list(name, repository, state, store_url, early=early) as (store, key):
        done = store.remove(key, [one.encode() for one in ids])
        if as_json:
            console.print_json(_change_report(name, store.size(key), removed=done))
            return
        _print_change(
            name, store.size(key), f"{done:,} removed, {len(ids) - done:,} were not"
        )


def load(
    name: Name,
    file: Annotated[Path, typer.Argument(help="Text file with one id per line.")],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Remove ids that the file does not contain."),
    ] = False,
    repository: Repository = None,
    state: State = None,
    store_url: StoreUrl = None,
    early: Early = False,
    as_json: Json = False,
) -> None:
    """Add the ids of a file to a list; --replace removes all others."""
    ids = set(_read(file))
    with _open_list(name, repository, state, store_url, early=early) as (store, key):
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


def show(
    name: Name,
    ids: Annotated[
        list[str] | None,
        typer.Argument(help="Ids to look up; if omitted, all ids are printed."),
    ] = None,
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
    with _open_list(name, repository, state, store_url, early=early) as (store, key):
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
    console.out.print(f"{name}: {done}; {size:,} now", highlight=False, markup=False)


@contextmanager
def _open_list(
    name: str,
    repository: str | None,
    state: str | None,
    store_url: str | None,
    *,
    early: bool,
) -> Iterator[tuple[ListStore, bytes]]:
    """Find the list, which the served policy must name, and open the store."""
    from tollgate.store.id_lists import list_key
    from tollgate.store.list_editing import ListStore

    chosen = console.settings(repository=repository, state=state, store_url=store_url)
    console.require_products(chosen, chosen.products)
    if not early:
        _require_named(name, chosen.repository_path, product=chosen.product)
    store = ListStore(running_server.store_url(chosen), timeout_s=_TIMEOUT_S)
    try:
        yield store, list_key(chosen.product, name)
    finally:
        store.close()


def _require_named(name: str, repository: Path, *, product: str) -> None:
    from tollgate.repository.releases.rendering import served_policy

    names = [one.name for one in served_policy(repository, product=product).lists]
    if name not in names:
        known = f"it has {', '.join(names)}" if names else "it has none"
        problem = f"{name!r} is no list of the served policy: {known}; or add --early"
        raise RepositoryError(repository, problem, where="lists")
