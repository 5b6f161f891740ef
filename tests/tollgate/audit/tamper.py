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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tollgate.audit import merkle
from tollgate.audit.anchor import AnchorFile, Mark, read_anchor
from tollgate.audit.chain import Chain
from tollgate.audit.content import Content
from tollgate.audit.digests import digests
from tollgate.audit.flags import flag_new
from tollgate.audit.links import (
    File,
    Link,
    decode_link,
    encode_link,
    link_hash,
    link_name,
    link_paths,
)
from tollgate.audit.releases import Releases
from tollgate.audit.sealing import Sealer
from tollgate.audit.subjects import Subjects
from tollgate.audit.verify import Proof, verify

sys.path.insert(0, str(Path(__file__).parent))
from records_made import REPOSITORY, made

SEGMENTS, ROWS = 5, 60

Tampering = Callable[[Path, random.Random], str]  # returns what must be named


def sealed_journal(folder: Path) -> tuple[Path, list[Mark]]:
    """Seal a small journal, with releases and late checks; where, and its anchor."""
    anchor = folder / "anchor"
    chain = Chain(folder / "journal", product="fraud", anchor=AnchorFile(anchor))
    releases = Releases(chain, repository=REPOSITORY)
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
    chain.add(Content(kind="tombstone", facts={"older_than": "nothing"}))
    subjects.close()
    return chain.folder, read_anchor(anchor)


def links_of(folder: Path) -> list[Link]:
    """Read the links of a sound journal."""
    return [decode_link(path, path.read_bytes()) for path in link_paths(folder)]


def chosen_table(folder: Path, chance: random.Random) -> tuple[Link, pl.DataFrame]:
    """Choose one of the tables."""
    link = chance.choice([one for one in links_of(folder) if one.table])
    return link, pl.read_parquet(folder / link.table)


def record(
    link: Link, table: pl.DataFrame, row: int, *, place: int | None = None
) -> str:
    """Name a record as `verify` does."""
    if link.kind != "segment":
        return f"{link.table}: row {row if place is None else place}:"
    writer, number = table["writer"][row], table["sequence"][row]
    return f"{link.table}: record {number} of writer {writer}:"


# Records ------------------------------------------------------------------------------


def change_a_cell(folder: Path, chance: random.Random) -> str:
    """Change one value of one record, and write the file anew."""
    link, table = chosen_table(folder, chance)
    row = chance.randrange(len(table))
    free = [name for name in table.columns if name not in ("writer", "sequence")]
    name = chance.choice(free)
    column = table[name]
    table = table.with_columns(column.scatter(row, other(column, row, chance)))
    table.write_parquet(folder / link.table)
    return record(link, table, row)


def other(column: pl.Series, row: int, chance: random.Random) -> Any:
    """Give another value of the column's type; for numbers one bit is flipped."""
    value, kind = column[row], column.dtype
    if value is None:
        return pl.Series([1]).cast(kind)[0] if kind.is_numeric() else "x"
    if kind == pl.String:
        return value + "x" if chance.random() < 0.5 or not value else value[:-1]
    if kind == pl.Boolean:
        return not value
    if isinstance(kind, pl.Datetime):
        return pl.Series([column.to_physical()[row] ^ 1]).cast(kind)[0]
    raw = np.array([value], column.to_numpy().dtype)
    bits = raw.view(np.uint8)
    bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
    return raw[0].item()


def erase_a_cell(folder: Path, chance: random.Random) -> str:
    """Take one value out of one record."""
    link, table = chosen_table(folder, chance)
    row = chance.randrange(len(table))
    free = [name for name in table.columns if name not in ("writer", "sequence")]
    filled = [name for name in free if table[name][row] is not None]
    column = table[chance.choice(filled)]
    table.with_columns(column.scatter(row, None)).write_parquet(folder / link.table)
    return record(link, table, row)


def delete_a_record(folder: Path, chance: random.Random) -> str:
    """Take one record out."""
    link, table = chosen_table(folder, chance)
    row = chance.randrange(len(table))
    pl.concat([table[:row], table[row + 1 :]]).write_parquet(folder / link.table)
    return record(link, table, row)


def double_a_record(folder: Path, chance: random.Random) -> str:
    """Put one record in twice."""
    link, table = chosen_table(folder, chance)
    row = chance.randrange(len(table))
    pl.concat([table[: row + 1], table[row:]]).write_parquet(folder / link.table)
    return record(link, table, row, place=row + 1)


def add_a_record(folder: Path, chance: random.Random) -> str:
    """Put in a record that never was, after the last."""
    link, table = chosen_table(folder, chance)
    new = table[-1:].with_columns(pl.col("sequence") + 1_000_000)
    whole = pl.concat([table, new])
    whole.write_parquet(folder / link.table)
    return record(link, whole, len(table))


def swap_records(folder: Path, chance: random.Random) -> str:
    """Exchange two records."""
    segments = [one for one in links_of(folder) if one.kind == "segment"]
    link = chance.choice(segments)
    table = pl.read_parquet(folder / link.table)
    order = list(range(len(table)))
    first, second = chance.sample(order, 2)
    order[first], order[second] = second, first
    table[order].write_parquet(folder / link.table)
    return record(link, table, first)


def move_a_record(folder: Path, chance: random.Random) -> str:
    """Take a record out of one segment and put it into another."""
    segments = [one for one in links_of(folder) if one.kind == "segment"]
    source, target = chance.sample(segments, 2)
    table = pl.read_parquet(folder / source.table)
    row = chance.randrange(len(table))
    grown = pl.concat([pl.read_parquet(folder / target.table), table[row : row + 1]])
    pl.concat([table[:row], table[row + 1 :]]).write_parquet(folder / source.table)
    grown.write_parquet(folder / target.table)
    return record(source, table, row)


def rename_a_column(folder: Path, chance: random.Random) -> str:
    """Give a column another name."""
    link, table = chosen_table(folder, chance)
    name = chance.choice(table.columns)
    table.rename({name: f"{name}_"}).write_parquet(folder / link.table)
    return f"{link.table}: its columns"


# Files --------------------------------------------------------------------------------


def filled(path: Path) -> bool:
    """Tell whether there is something to change."""
    return path.is_file() and path.stat().st_size > 0


def flip_a_byte(folder: Path, chance: random.Random) -> str:
    """Flip one bit of one file, whichever."""
    paths = sorted(path for path in folder.iterdir() if filled(path))
    path = chance.choice(paths)
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    if path.name == link_name(int(path.name[:8])):
        return f"link {int(path.name[:8])}:"
    return path.name


def cut_a_file(folder: Path, chance: random.Random) -> str:
    """Cut a file short."""
    paths = sorted(path for path in folder.iterdir() if filled(path))
    path = chance.choice(paths)
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])
    if path.name == link_name(int(path.name[:8])):
        return f"link {int(path.name[:8])}:"
    return path.name


def remove_a_file(folder: Path, chance: random.Random) -> str:
    """Remove a file that is no link."""
    links = {path.name for path in link_paths(folder)}
    names = [path.name for path in folder.iterdir() if filled(path)]
    name = chance.choice(sorted(set(names) - links))
    (folder / name).unlink()
    return name


def add_a_file(folder: Path, chance: random.Random) -> str:
    """Put a copy of a segment beside the others."""
    link, _ = chosen_table(folder, chance)
    name = f"{chance.randrange(100, 1000):08d}.segment.parquet"
    if chance.random() < 0.3:
        name = f".new/{link.number:08d}.{name[9:]}"
    shutil.copy(folder / link.table, folder / name)
    return name


def swap_files(folder: Path, chance: random.Random) -> str:
    """Exchange two segments' files."""
    tables = sorted(folder.glob("*.segment.parquet"))
    first, second = chance.sample(tables, 2)
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    return first.name


# Links --------------------------------------------------------------------------------


def edit_a_link(folder: Path, chance: random.Random) -> str:
    """Change one field of one link."""
    link = chance.choice(links_of(folder))
    changed = chance.choice(
        [
            {"sealed": "2024-01-01T00:00:00Z"},
            {"rows": link.rows + 1},
            {"root": "0" * 64},
            {"previous": "f" * 64},
            {"chain": "0" * 32},
            {"facts": {"first_decided": "never"}},
            {"covers": (*link.covers, 3)},
            {"until_us": link.until_us + 1},
            {"gaps": (*link.gaps, *link.writers[:1]), "files": link.files[1:]},
        ]
    )
    edited = msgspec.structs.replace(link, **changed)
    if edited == link:
        edited = msgspec.structs.replace(link, until_us=1)
    (folder / link_name(link.number)).write_bytes(encode_link(edited))
    return f"link {link.number}:"


def remove_a_link(folder: Path, chance: random.Random) -> str:
    """Remove a link, and with some luck its files, too."""
    paths = link_paths(folder)
    path = chance.choice(paths)
    number = int(path.name[:8])
    path.unlink()
    if chance.random() < 0.5:
        for own in folder.glob(f"{number:08d}.*"):
            own.unlink()
    return f"link {number}: was removed"


def cut_the_end(folder: Path, chance: random.Random) -> str:
    """Remove the newest links and all their files; the rest is a sound chain."""
    last = len(link_paths(folder))
    kept = chance.randrange(1, last)
    for number in range(kept + 1, last + 1):
        for own in folder.glob(f"{number:08d}.*"):
            own.unlink()
    return f"link {kept + 1}: was removed"


def swap_links(folder: Path, chance: random.Random) -> str:
    """Exchange two links."""
    first, second = chance.sample(link_paths(folder), 2)
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    return f"link {int(first.name[:8])}:"


def forge(folder: Path, chance: random.Random) -> str:
    """Change a record and make everything after it anew, as if it had been so."""
    links = links_of(folder)
    segments = [one for one in links if one.kind == "segment"]
    target = chance.choice(segments)
    path = folder / target.table
    table = pl.read_parquet(path)
    row = chance.randrange(len(table))
    decision = "approve" if table["decision"][row] != "approve" else "decline"
    table = table.with_columns(table["decision"].scatter(row, decision))
    table.write_parquet(path)
    leaves = digests(table)
    (folder / f"{target.number:08d}.leaves").write_bytes(b"".join(leaves))
    content = path.read_bytes()
    links[target.number - 1] = msgspec.structs.replace(
        target,
        files=(File(path.name, len(content), link_hash(content)),),
        root=merkle.root(leaves).hex(),
    )
    relink(folder, links)
    return f"link {target.number}: was changed: its anchor"


def append_a_link(folder: Path, chance: random.Random) -> str:
    """Add a segment that fits the chain."""
    links = links_of(folder)
    segments = [one for one in links if one.kind == "segment"]
    source = chance.choice(segments)
    number = len(links) + 1
    for file in (source.table, f"{source.number:08d}.leaves"):
        shutil.copy(folder / file, folder / f"{number:08d}{file[8:]}")
    file = msgspec.structs.replace(
        source.files[0], name=f"{number:08d}{source.table[8:]}"
    )
    new = msgspec.structs.replace(source, number=number, files=(file,))
    relink(folder, [*links, new])
    return f"link {number}: was added"


def drop_a_segment(folder: Path, chance: random.Random) -> str:
    """Take a segment out and number all after it anew, hashes included."""
    links = links_of(folder)
    target = chance.choice([one for one in links if one.kind == "segment"])
    for own in folder.glob(f"{target.number:08d}.*"):
        own.unlink()
    for link in links[target.number :]:
        for own in folder.glob(f"{link.number:08d}.*"):
            own.rename(folder / f"{link.number - 1:08d}{own.name[8:]}")
    moved = [
        msgspec.structs.replace(
            link,
            number=link.number - 1,
            files=tuple(
                msgspec.structs.replace(
                    file, name=f"{link.number - 1:08d}{file.name[8:]}"
                )
                for file in link.files
            ),
        )
        for link in links[target.number :]
    ]
    relink(folder, [*links[: target.number - 1], *moved])
    return f"link {target.number}: was changed: its anchor"


def relink(folder: Path, links: list[Link]) -> None:
    """Write links so that each has the hash of the one before."""
    before = "0" * 64
    for link in links:
        content = encode_link(msgspec.structs.replace(link, previous=before))
        (folder / link_name(link.number)).write_bytes(content)
        before = link_hash(content)


TAMPERINGS: tuple[Tampering, ...] = (
    change_a_cell,
    erase_a_cell,
    delete_a_record,
    double_a_record,
    add_a_record,
    swap_records,
    move_a_record,
    rename_a_column,
    flip_a_byte,
    cut_a_file,
    remove_a_file,
    add_a_file,
    swap_files,
    edit_a_link,
    remove_a_link,
    cut_the_end,
    swap_links,
    forge,
    append_a_link,
    drop_a_segment,
)


def found(proof: Proof, expected: str) -> tuple[bool, bool]:
    """Tell whether anything was found, and by the right name."""
    told = [str(finding) for finding in proof.findings]
    return bool(told), any(expected in one for one in told)


def run(*, times: int, seed: int = 0) -> dict[str, Any]:
    """Tamper so many times; what was found."""
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
    """Read the arguments and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    told = run(**vars(parser.parse_args()))
    print(json.dumps(told, indent=2))
    sys.exit(0 if told["named"] == told["times"] else 1)


if __name__ == "__main__":
    main()
