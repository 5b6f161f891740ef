"""
Hold two runtimes of one model repository against each other.

`compare.py A B`: two folders that `prove.sh` filled. They must have served the same
files, byte for byte, and answered the same purchases alike. Scores may differ as
releases of onnxruntime do, which add up in another order.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

SERVED = "repository.sha256"
ANSWERS = "answers.csv"
# As tollgate/server/model_trial.py; conversion is proven to the same.
TOLERANCE = 1e-5


def main(arguments: list[str]) -> int:
    """Print what differs, or that nothing does; the exit status."""
    one, other = map(Path, arguments)
    problems = [*served_differently(one, other), *answered_differently(one, other)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        files = len((one / SERVED).read_text().splitlines())
        rows = len(_rows(one))
        print(f"{files} files are the same, and {rows} purchases were answered alike")
    return 1 if problems else 0


def served_differently(one: Path, other: Path) -> list[str]:
    """Name the files that only one of them served, or with other bytes."""
    left, right = _sums(one), _sums(other)
    return [
        f"{SERVED}: {name}: {left.get(name, 'not there')} in {one}, "
        f"{right.get(name, 'not there')} in {other}"
        for name in sorted({*left, *right})
        if left.get(name) != right.get(name)
    ]


def answered_differently(one: Path, other: Path) -> list[str]:
    """Name the cells that differ by more than onnxruntimes do."""
    left, right = _rows(one), _rows(other)
    if not left or len(left) != len(right):
        return [f"{ANSWERS}: {len(left)} rows in {one}, {len(right)} in {other}"]
    return [
        f"{ANSWERS}: row {number}: {name}: {a.get(name)!r} in {one}, "
        f"{b.get(name)!r} in {other}"
        for number, (a, b) in enumerate(zip(left, right, strict=True), start=1)
        for name in {**a, **b}
        if not _alike(name, a.get(name), b.get(name))
    ]


def _alike(name: str, a: str | None, b: str | None) -> bool:
    if name == "score" and a and b:
        return abs(float(a) - float(b)) <= TOLERANCE
    return a == b


def _sums(folder: Path) -> dict[str, str]:
    lines = (folder / SERVED).read_text().splitlines()
    pairs = [line.split(maxsplit=1) for line in lines]
    return {name: digest for digest, name in pairs}


def _rows(folder: Path) -> list[dict[str, str]]:
    with (folder / ANSWERS).open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
