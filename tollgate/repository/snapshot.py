"""
Read a model repository once, and pass on what was read.

A check, a plan and an activation need the same configurations, releases and hashes
several times, and must agree on them. They share one snapshot, which reads each file
when it is first needed and never again.

A snapshot does not see later changes, so it serves one operation. Two things are never
taken from it: the verification of a release, which hashes the files as they are at that
moment (`release.verify_release`), and the state that an activation compares under the
product's lock (`history.settle`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.repository.configs import read_config
from tollgate.repository.hashes import hash_version
from tollgate.repository.product_models import Product, assemble_product
from tollgate.repository.releases.release_file import (
    Release,
    find_current,
    read_release,
)
from tollgate.repository.releases.release_history import (
    Entry,
    history_with,
    written_entries,
)


class RepositorySnapshot:
    """
    A model repository as it was when each of its files was first needed.

    A file that cannot be read raises its error each time it is needed. Callers must not
    change the messages and structures that they get; `configs.merge` copies.
    """

    def __init__(self, folder: Path, *, config_name: str = "") -> None:
        self.folder = folder
        self.config_name = config_name
        self._configs: dict[str, ModelConfig] = {}
        self._products: dict[str, Product] = {}
        self._releases: dict[str, Release | None] = {}
        self._histories: dict[str, tuple[Entry, ...]] = {}
        self._hashes: dict[tuple[str, int], Mapping[str, str]] = {}

    def config(self, model: str) -> ModelConfig:
        """
        Return the configuration of a model.

        Raises:
            RepositoryError: As `configs.read_config`.
        """
        if model not in self._configs:
            self._configs[model] = read_config(
                self.folder, model, config_name=self.config_name
            )
        return self._configs[model]

    def product(self, name: str) -> Product:
        """
        Return a product: its ensemble and the steps that the ensemble names.

        Raises:
            RepositoryError: As `product.read_product`.
            InputError: The name of the configuration is not valid.
        """
        if name not in self._products:
            self._products[name] = assemble_product(
                self.folder, name, config_name=self.config_name, read=self.config
            )
        return self._products[name]

    def current_release(self, product: str) -> Release | None:
        """
        Return the release of a product; None if it has none yet.

        Raises:
            RepositoryError: The file cannot be read.
        """
        if product not in self._releases:
            self._releases[product] = find_current(self.folder, product=product)
        return self._releases[product]

    def release(self, product: str) -> Release:
        """
        Return the release of a product.

        Raises:
            RepositoryError: There is none, or its file cannot be read.
        """
        current = self.current_release(product)
        return current or read_release(self.folder, product=product)

    def history(self, product: str) -> Sequence[Entry]:
        """
        Return the history of a product, oldest first, as `history.read_history`.

        Raises:
            RepositoryError: The history or the release cannot be read.
        """
        if product not in self._histories:
            written = written_entries(self.folder, product)
            entries = history_with(written, self.current_release(product))
            self._histories[product] = tuple(entries)
        return self._histories[product]

    def hashes(self, model: str, *, version: int) -> Mapping[str, str]:
        """
        Return the SHA-256 of every file of a version, as `hashes.hash_version`.

        Raises:
            RepositoryError: There is no such version, or a file cannot be read.
        """
        if (model, version) not in self._hashes:
            found = hash_version(self.folder, model, version=version)
            self._hashes[model, version] = MappingProxyType(found)
        return self._hashes[model, version]
