"""Move a product's folders into or out of a repository, all of them or none."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tollgate.errors import InputError, RepositoryError
from tollgate.product.files import ranking_step_names, step_names
from tollgate.repository.atomic import sync_directory
from tollgate.repository.configs import read_config
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import product_names
from tollgate.suggestions import suggest

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def require_free(repository: Path, product: str) -> None:
    """
    Check that a product's name is valid and not in use.

    Raises:
        InputError: The name is invalid.
        RepositoryError: A folder of that name exists.
    """
    if not _NAME.fullmatch(product):
        problem = "is no name of up to 40 small letters, digits and underscores"
        raise InputError("product", f"{product!r:.60} {problem}")
    if not repository.is_dir():
        raise RepositoryError(repository, "is not a folder; name the model repository")
    there = [name for name in _folders(product) if (repository / name).exists()]
    if there:
        problem = f"there already; tollgate product remove {product} takes it out"
        raise RepositoryError(repository / there[0], problem)


def place(staged: Path, *, repository: Path, product: str) -> None:
    """
    Rename a product's four folders into a repository, the ensemble last.

    So a server that detects the ensemble also finds its steps.

    Raises:
        RepositoryError: One cannot be placed; those that were placed are removed again.
    """
    pairs = [
        (staged / name, repository / name)
        for name in _folders(product)
        if (staged / name).is_dir()
    ]
    _move(pairs, repository=repository)


def folders_of(repository: Path, product: str) -> list[str]:
    """
    List the folders that make up a product, the ensemble first.

    Steps that another ensemble also calls do not belong to it. Folders that an
    interrupted removal left behind, or that a broken configuration hides, are found by
    name.

    Raises:
        RepositoryError: The product has no folder there.
    """
    names = list(_folders(product))[::-1]
    with contextlib.suppress(RepositoryError):  # if it fails, find them by their names
        names = [product, *read_product(repository, product).steps]
    found = [name for name in names if (repository / name).is_dir()]
    if not found:
        there = suggest(product, product_names(repository))
        raise RepositoryError(repository, f"has no product {product!r}; {there}")
    shared = _called_by_others(repository, product)
    return [name for name in found if name not in shared]


def displace(repository: Path, names: Sequence[str], *, into: Path) -> None:
    """
    Rename folders out of a repository, in this order.

    Raises:
        RepositoryError: One cannot be moved; all are put back.
    """
    pairs = [(repository / name, into / name) for name in names]
    _move(pairs, repository=repository)


def _folders(product: str) -> tuple[str, ...]:
    """Name the folders that a product of either kind can have, the ensemble last."""
    steps = dict.fromkeys((*step_names(product), *ranking_step_names(product)))
    return (*steps, product)


def _called_by_others(repository: Path, product: str) -> set[str]:
    """List the models that ensembles other than this one call."""
    found: set[str] = set()
    for path in repository.glob("*/config.pbtxt"):
        name = path.parent.name
        if name == product:
            continue
        try:
            steps = read_config(repository, name).ensemble_scheduling.step
        except RepositoryError:
            continue  # an unreadable configuration calls no model
        found |= {step.model_name for step in steps}
    return found


def _move(pairs: Sequence[tuple[Path, Path]], *, repository: Path) -> None:
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in pairs:
            if target.exists():  # rename would silently replace an empty folder
                raise FileExistsError(0, "is there already", str(target))
            os.rename(source, target)
            done.append((source, target))
    except OSError as exc:
        for source, target in reversed(done):
            os.rename(target, source)
        where = exc.filename2 or exc.filename or repository
        raise RepositoryError(where, f"cannot be moved: {exc.strerror}") from exc
    finally:
        sync_directory(repository)
