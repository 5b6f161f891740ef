"""The server under load, and the inputs that its products require."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tollgate.errors import InputError, SetupError
from tollgate.features.spec.feature_spec import FeatureSpec, all_fields, wire_inputs
from tollgate.repository.releases.served_versions import served_spec
from tollgate.server.address import find_server


class Target(msgspec.Struct, frozen=True):
    """
    The server under load.

    Attributes:
        grpc_url: host:port.
        specs: Product -> its feature spec.
    """

    grpc_url: str
    specs: Mapping[str, FeatureSpec]

    def inputs(self, product: str) -> dict[str, str]:
        """Return the inputs of a product, with their types on the wire."""
        return wire_inputs(self.specs[product])

    def fields(self, product: str) -> dict[str, str]:
        """Return its declared fields, with their types on the wire."""
        return all_fields(self.specs[product])


def local_target(state: Path) -> Target:
    """
    Find the server of a state folder.

    Raises:
        SetupError: No server runs there.
    """
    server = find_server(state)
    if server is None:
        remedy = "start `tollgate up`, or say where one is: --host HOST:PORT"
        raise SetupError(f"no server runs in {state}", remedy=remedy)
    repository = Path(server.repository)
    return Target(server.grpc_url, _specs(repository, server.products))


def remote_target(grpc_url: str, *, repository: Path) -> Target:
    """
    Take a server at an address, and the products of a repository.

    Raises:
        InputError: The repository has no products.
    """
    releases = sorted(repository.glob("*/release.json"))
    if not releases:
        raise InputError("--repository", f"{repository} holds no product")
    return Target(grpc_url, _specs(repository, [one.parent.name for one in releases]))


def _specs(repository: Path, products: Sequence[str]) -> dict[str, FeatureSpec]:
    return {product: served_spec(repository, product=product) for product in products}
