"""Tamper with files and links of a journal; functions return the finding to expect."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import polars as pl

from tests.support.audit.record_tampering import Tampering, chosen_table, links_of
from tollgate.audit.chain import merkle
from tollgate.audit.chain.digests import digests
from tollgate.audit.chain.links import (
    File,
    Link,
    encode_link,
    link_hash,
    link_name,
    link_paths,
)

# Files --------------------------------------------------------------------------------


def filled(path: Path) -> bool:
    """Return whether there is something to change."""
    return path.is_file() and path.stat().st_size > 0


def flip_a_byte(folder: Path, chance: random.Random) -> str:
    """Flip one bit of any one file."""
    paths = sorted(path for path in folder.iterdir() if filled(path))
    path = chance.choice(paths)
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    if path.name == link_name(int(path.name[:8])):
        return f"link {int(path.name[:8])}:"
    return path.name


def cut_a_file(folder: Path, chance: random.Random) -> str:
    """Truncate a file."""
    paths = sorted(path for path in folder.iterdir() if filled(path))
    path = chance.choice(paths)
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])
    if path.name == link_name(int(path.name[:8])):
        return f"link {int(path.name[:8])}:"
    return path.name


def remove_a_file(folder: Path, chance: random.Random) -> str:
    """Remove a file that is not a link."""
    links = {path.name for path in link_paths(folder)}
    names = [path.name for path in folder.iterdir() if filled(path)]
    name = chance.choice(sorted(set(names) - links))
    (folder / name).unlink()
    return name


def add_a_file(folder: Path, chance: random.Random) -> str:
    """Put a copy of a segment next to the others."""
    link, _ = chosen_table(folder, chance)
    name = f"{chance.randrange(100, 1000):08d}.segment.parquet"
    if chance.random() < 0.3:
        name = f".new/{link.number:08d}.{name[9:]}"
    shutil.copy(folder / link.table, folder / name)
    return name


def swap_files(folder: Path, chance: random.Random) -> str:
    """Exchange the files of two segments."""
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
    """Remove a link, sometimes with its files."""
    paths = link_paths(folder)
    path = chance.choice(paths)
    number = int(path.name[:8])
    path.unlink()
    if chance.random() < 0.5:
        for own in folder.glob(f"{number:08d}.*"):
            own.unlink()
    return f"link {number}: was removed"


def cut_the_end(folder: Path, chance: random.Random) -> str:
    """Remove the newest links and all their files; the rest is a valid chain."""
    last = len(link_paths(folder))
    remaining = chance.randrange(1, last)
    for number in range(remaining + 1, last + 1):
        for own in folder.glob(f"{number:08d}.*"):
            own.unlink()
    return f"link {remaining + 1}: was removed"


def swap_links(folder: Path, chance: random.Random) -> str:
    """Exchange two links."""
    first, second = chance.sample(link_paths(folder), 2)
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    return f"link {int(first.name[:8])}:"


def forge(folder: Path, chance: random.Random) -> str:
    """Change a record, and rebuild everything after it to match."""
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
    """Remove a segment and renumber everything after it, with new hashes."""
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


OF_FILES: tuple[Tampering, ...] = (
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
