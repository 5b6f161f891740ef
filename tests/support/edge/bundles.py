"""Keys, and bundles of the committed products."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tollgate.edge.bundle import read_private_key, read_public_key
from tollgate.edge.packing import pack

REPOSITORY = Path(__file__).parents[3] / "model_repository"


class Keys:
    """A pair of keys, made by openssl: not by the library that reads them."""

    def __init__(self, folder: Path, name: str = "release") -> None:
        self.private, self.public = folder / f"{name}.key", folder / f"{name}.pub"
        for arguments in (
            ["genpkey", "-algorithm", "ed25519", "-out", str(self.private)],
            ["pkey", "-in", str(self.private), "-pubout", "-out", str(self.public)],
        ):
            subprocess.run(["openssl", *arguments], check=True, capture_output=True)
        self.private.chmod(0o600)
        self.signs = read_private_key(self.private)
        self.verifies = read_public_key(self.public)


def packed(
    keys: Keys, folder: Path, product: str = "fraud", *, repository: Path = REPOSITORY
) -> Path:
    """Pack a product into a file of a folder."""
    out = folder / f"{product}.bundle"
    pack(repository, product=product, key=keys.signs, out=out)
    return out
