"""
Tamper with a journal at random, and see whether `verify` finds it and names it.

    python tests/tollgate/audit/tamper.py --times 1000

Each time the sealed journal is as it was, one thing is done to it, and it is proven.
Prints one JSON object: per kind of tampering how often it was done, was found, and was
found by the name that it should be found by. Exit status 1 when one was not.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.audit.file_tampering import OF_FILES
from tests.support.audit.random_records import REPOSITORY, made
from tests.support.audit.record_tampering import OF_RECORDS, Tampering
from tollgate.audit.chain.anchor import AnchorFile, AnchorMark, read_anchor
from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import LinkContent
from tollgate.audit.chain.verification import VerificationResult, verify
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.worker.late_checks import flag_new
from tollgate.audit.worker.pseudonyms import Subjects
from tollgate.audit.worker.sealing import Sealer

SEGMENTS, ROWS = 5, 60
TAMPERINGS: tuple[Tampering, ...] = (*OF_RECORDS, *OF_FILES)


def sealed_journal(folder: Path) -> tuple[Path, list[AnchorMark]]:
    """Seal a small journal with releases and late checks; return folder and anchor."""
    anchor = folder / "anchor"
    chain = Chain(folder / "journal", product="fraud", anchor=AnchorFile(anchor))
    releases = ReleaseArchive(chain, repository=REPOSITORY)
    subjects = Subjects(folder / "keys")
    sealer = Sealer(chain, subjects=subjects, releases=releases)
    for number in range(SEGMENTS):
        first = number * ROWS
        sealer.seal(
            [
                made(ROWS // 2, first=first, seed=number),
                made(ROWS // 2, first=first, seed=number, writer="f" * 16),
            ]
        )
    flag_new(chain, releases)
    chain.add(LinkContent(kind="tombstone", facts={"older_than": "nothing"}))
    subjects.close()
    return chain.folder, read_anchor(anchor)


def found(proof: VerificationResult, expected: str) -> tuple[bool, bool]:
    """Return whether anything was found, and whether under the right name."""
    found = [str(finding) for finding in proof.findings]
    return bool(found), any(expected in one for one in found)


def run(*, times: int, seed: int = 0) -> dict[str, Any]:
    """Tamper a number of times; return the counts."""
    chance = random.Random(seed)
    done, seen, named = Counter[str](), Counter[str](), Counter[str]()
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        folder, marks = sealed_journal(Path(name))
        assert not verify(folder, marks=marks).findings
        copy = Path(name) / "tampered"
        for number in range(times):
            tamper = TAMPERINGS[number % len(TAMPERINGS)]
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy)
            expected = tamper(copy, chance)
            proof = verify(copy, marks=marks)
            any_found, by_name = found(proof, expected)
            kind = tamper.__name__
            done[kind] += 1
            seen[kind] += any_found
            named[kind] += by_name
            if not by_name:
                missed.append(f"{kind}: {expected}: {list(map(str, proof.findings))}")
    return {
        "times": times,
        "found": sum(seen.values()),
        "named": sum(named.values()),
        "kinds": {kind: [done[kind], seen[kind], named[kind]] for kind in done},
        "missed": missed[:10],
    }


def main() -> None:
    """Read the arguments and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    found = run(**vars(parser.parse_args()))
    print(json.dumps(found, indent=2))
    sys.exit(0 if found["named"] == found["times"] else 1)


if __name__ == "__main__":
    main()
