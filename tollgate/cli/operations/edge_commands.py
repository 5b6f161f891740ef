"""Sign releases for devices, collect their records: `edge key|pack|release|…`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console, running_server
from tollgate.cli.options import JournalUrl, Repository, State
from tollgate.cli.repositories import open_for_reading
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import InputError, ObjectStoreError, StoreError

if TYPE_CHECKING:
    from tollgate.edge.group import Group as GroupFile


def key(
    private: Annotated[
        Path, typer.Argument(help="File for the private key, which signs; PEM.")
    ],
    public: Annotated[
        Path, typer.Argument(help="File for the public key, which devices have; PEM.")
    ],
) -> None:
    """Generate an Ed25519 key, with which bundles are signed and verified."""
    from tollgate.edge.bundle import make_keys

    make_keys(private, public)
    console.result(f"{private}\n{public}")


def pack(
    product: Annotated[
        str, typer.Argument(help="Product, by the name of its ensemble.")
    ],
    key: Annotated[Path, typer.Option(help="Private key to sign with: Ed25519, PEM.")],
    out: Annotated[Path, typer.Option(help="Bundle to write.")],
    smaller: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a smaller model, from `tollgate convert` with --prune, "
            "--distill or --quantize, for when time or memory is short."
        ),
    ] = None,
    rules: Annotated[
        bool, typer.Option(help="Let the device decide without a model, if it must.")
    ] = False,
    repository: Repository = None,
) -> None:
    """Write the active release of a product into one signed file for devices."""
    from tollgate.edge.bundle import read_private_key
    from tollgate.edge.packing import pack as pack_release

    chosen = console.settings(repository=repository, product=product)
    signing = read_private_key(key)
    with open_for_reading(chosen) as folder:
        made = pack_release(
            folder,
            product=chosen.product,
            key=signing,
            out=out,
            smaller=smaller,
            rules=rules,
        )
    console.result(
        f"{out}: {made.release} of {made.product}, sequence {made.sequence}, "
        f"{len(made.files)} files, {out.stat().st_size:,} bytes; variants "
        + ", ".join(one.name for one in made.variants)
    )


Group = Annotated[str, typer.Argument(help="Group of devices.")]
Store = Annotated[
    str, typer.Option(help="Object store: a folder, or such as s3://bucket/edge.")
]
PrivateKey = Annotated[
    Path, typer.Option(help="Private key to sign with: Ed25519, PEM.")
]


def release(
    group: Group,
    bundle: Annotated[
        Path, typer.Argument(help="Bundle that `tollgate edge pack` wrote.")
    ],
    store: Store,
    key: PrivateKey,
    canary: Annotated[
        float | None,
        typer.Option(
            help="Share of the devices that run it, in percent.",
            min=0.01,
            max=100,
            show_default="all",
        ),
    ] = None,
    pin: Annotated[
        str | None, typer.Option(help="The one device that runs it.")
    ] = None,
) -> None:
    """Let the devices of a group run a bundle; create the group if there is none."""
    from tollgate.edge import group as groups
    from tollgate.edge.bundle import read_private_key

    if canary is not None and pin is not None:
        raise InputError("--canary, --pin", "give one of them")
    made = groups.release(
        groups.open_objects(store),
        group,
        bundle=bundle,
        key=read_private_key(key),
        canary=canary,
        pin=pin,
    )
    console.result(_described(made))


def rollback(
    group: Group,
    store: Store,
    key: PrivateKey,
    pin: Annotated[
        str | None, typer.Option(help="Take back the pin of this device instead.")
    ] = None,
) -> None:
    """Take back the canary of a group; without one, its last release."""
    from tollgate.edge import group as groups
    from tollgate.edge.bundle import read_private_key

    objects, signing = groups.open_objects(store), read_private_key(key)
    console.result(_described(groups.roll_back(objects, group, key=signing, pin=pin)))


def collect(
    group: Group,
    store: Store,
    journal_url: JournalUrl = None,
    every: Annotated[
        str | None,
        typer.Option(help="Pause between polls, such as 30s.", show_default="once"),
    ] = None,
    state: State = None,
) -> None:
    """
    Move the records of a group's devices to the journal's stream.

    `tollgate journal run` seals them there. With --every, until Ctrl-C or SIGTERM.
    """
    from tollgate.cli.decisions.journal_commands import seconds
    from tollgate.edge.collector import Collector
    from tollgate.worker import Worker

    chosen = console.settings(journal_url=journal_url, state=state)
    every_s = seconds(every, flag="--every") if every is not None else None
    url = running_server.journal_url(chosen)
    stopped = stop_on_signal()
    with closing(Collector(store, group=group, journal_url=url)) as collector:
        if every_s is None:
            console.result(f"collected {collector.step():,} segments")
            return

        def step() -> None:
            try:
                collector.step()
            except (InputError, ObjectStoreError, StoreError) as error:
                console.say(f"tollgate: {error}")

        Worker(
            "edge-collect", step, pause_s=every_s, at_once=True, stopped=stopped
        ).run()


def _described(group: GroupFile) -> str:
    """Describe in one line what the devices of a group run."""
    parts = [f"group {group.name}, number {group.number}: {group.bundle.release}"]
    if group.canary is not None:
        share = f"{group.canary.percent:g} % of the devices"
        parts.append(f"{group.canary.bundle.release} on {share}")
    parts += [
        f"{one.release} on {device}" for device, one in sorted(group.pins.items())
    ]
    return "; ".join(parts)
