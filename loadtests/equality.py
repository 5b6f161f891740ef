"""
Compare the forms of the engine bit by bit: `python -m loadtests.equality`.

The same rows in the same order go through the served ensemble, the served fused form,
the local form over a Redis and in memory, and a device that serves a bundle, each with
compiled loops and with NumPy.
The command prints how many bits of features, answers and journal records differ from
those of the ensemble with compiled loops.

Each form runs in a process of its own and writes its result to a file. Left out are
the values that a clock or chance decides: `LEFT_OUT`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import redis

from loadtests.harness import (
    REPOSITORY,
    Report,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from tollgate import Engine
from tollgate.compiled import COMPILED_VARIABLE
from tollgate.edge.bundle import make_keys, read_private_key
from tollgate.edge.device import Device
from tollgate.edge.grpc_port import GrpcPort
from tollgate.edge.packing import pack
from tollgate.errors import ServerError
from tollgate.features.spec.feature_spec import FeatureSpec, all_fields, wire_inputs
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.journal_spool import JournalSpool
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.load.synthetic import synthetic_purchases
from tollgate.repository.configs import read_config
from tollgate.repository.product_models import is_ranking
from tollgate.repository.releases.release_file import product_names
from tollgate.repository.releases.rendering import lookup_lists
from tollgate.repository.releases.served_versions import load_policy_of, served_spec
from tollgate.schema import (
    AMOUNT,
    EVENT_TIME,
    MAX_BATCH_ROWS,
    REASON_SEPARATOR,
    TRANSACTION_ID,
)
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import serve
from tollgate.store.memory_store import MemoryStore
from tollgate_client import Client

# Lists of a product that ranks are compared in
# tests/tollgate/server/test_ranking_served.py.
PRODUCTS = tuple(
    name
    for name in product_names(REPOSITORY)
    if not is_ranking(read_config(REPOSITORY, name))
)
FORMS = ("ensemble", "fused", "local redis", "local memory", "device")
_IN_FILES = ("local memory", "device")  # their journal is in a folder
LOOPS = ("compiled", "numpy")
LEFT_OUT = (
    *("writer", "first_sequence", "decided_us"),
    *("features_us", "model_us", "decision_us"),
)
_OUTPUTS = ("decision", "score", "reason_codes", "degraded", "error", "release")
_OUT_OF_RANGE = 1e12  # for any number that a product without amounts declares
_DAY_US = 86_400_000_000
_SPAN_US = 60 * _DAY_US  # more than the longest window and its delay
_PATIENCE_S = 600.0
_STORED_S = 1.0  # in which a server stores the decisions whose records it wrote
_DEADLINE = re.compile(r'("store_deadline_ms" value \{ string_value: ")\d+')
_DEADLINE_MS = 5_000  # of the store: no answer depends on a busy machine


class Request(msgspec.Struct, frozen=True):
    """Hold the columns of 1 to 32 rows; a dry run changes nothing."""

    columns: dict[str, Any]
    dry: bool = False


class Result(msgspec.Struct):
    """
    Hold what a form answered and recorded.

    Attributes:
        answers: Per row its outputs as bytes, numbers and texts apart.
        features: Per transaction id the vectors of its records.
        records: Per transaction id all other values of its records.
    """

    answers: list[tuple[bytes, bytes]] = []
    features: dict[bytes, bytes] = {}
    records: dict[bytes, bytes] = {}


def traffic(
    spec: FeatureSpec, rows: int, *, seed: int, newest_us: int
) -> tuple[list[Request], list[Request]]:
    """
    Make requests with everything that happens to rows.

    Some are late, too late, of unknown ids, without a field, doubled in their request,
    or bad; every tenth request is a dry run.

    Args:
        spec: Features of the product.
        rows: Number of rows of the first requests.
        seed: The same seed, the same requests.
        newest_us: Time of the newest event.

    Returns:
        The requests; and those that follow when all of these are in the journal: some
            again, and some again with other content.
    """
    chance = np.random.default_rng(seed)
    ids = max(20, rows // 40)
    columns = synthetic_purchases(spec, rows, seed=seed, first_us=newest_us, ids=ids)
    time_us = newest_us - _SPAN_US + np.arange(rows) * (_SPAN_US // rows)
    late = chance.random(rows)
    time_us[late < 0.05] -= chance.integers(3 * _DAY_US)
    time_us[late < 0.01] -= 2 * _SPAN_US
    columns[EVENT_TIME] = time_us
    for entity in spec.entities:
        for row in np.flatnonzero(chance.random(rows) < 0.02).tolist():
            columns[entity.key][row] = f"unknown-{row}"
    names = columns[TRANSACTION_ID]
    requests, start = [], 0
    while start < rows:
        stop = min(rows, start + int(chance.integers(1, MAX_BATCH_ROWS + 1)))
        for row in range(start + 1, stop):
            draw = chance.random()
            if draw < 0.02:  # the same row twice, and the same id with another content
                for name, column in columns.items():
                    if draw < 0.01 or name == TRANSACTION_ID:
                        column[row] = column[row - 1]
            elif draw < 0.04:
                _spoil(columns, spec, row, kind=int(chance.integers(5)))
        part = {name: column[start:stop] for name, column in columns.items()}
        requests.append(Request(part, dry=len(requests) % 10 == 9))
        start = stop
    assert len(names) == rows
    again = [one for one in requests[-len(requests) // 5 :: 3] if not one.dry]
    other = [
        Request({**one.columns, EVENT_TIME: one.columns[EVENT_TIME] - 1})
        for one in again[::2]
    ]
    return requests, again + other


def _spoil(columns: dict[str, Any], spec: FeatureSpec, row: int, *, kind: int) -> None:
    """Make a row bad."""
    if kind <= 1 and not spec.amount:
        columns[spec.fields[0].name][row] = _OUT_OF_RANGE
    elif kind == 0:
        columns[AMOUNT][row] = -1.0
    elif kind == 1:
        columns[AMOUNT][row] = 19.999
    elif kind == 2:
        columns[TRANSACTION_ID][row] = ""
    elif kind == 3:
        columns[TRANSACTION_ID][row] = "x" * 200
    else:
        columns[EVENT_TIME][row] = 1


Decide = Callable[[Request], dict[str, Any]]


class _Form(msgspec.Struct, frozen=True):
    """
    A form that runs.

    Attributes:
        decide: Decides one request; columns of texts and numbers.
        chunks: Reads the chunks of the journal.
        wait: Waits until the journal has a number of records, and their decisions are
            stored.
    """

    decide: Decide
    chunks: Callable[[], list[bytes]]
    wait: Callable[[int], None]


def listed(
    spec: FeatureSpec, repository: Path, requests: Sequence[Request]
) -> list[tuple[bytes, list[bytes]]]:
    """Choose ids for the policy's first list; return its key and members."""
    policy = load_policy_of(repository / f"{spec.product}_decision" / "1", spec)
    return [
        (one.key, [str(name).encode() for name in requests[0].columns[one.of][:5]])
        for one in lookup_lists(policy, spec.product)[:1]
    ]


@contextmanager
def open_form(
    form: str,
    spec: FeatureSpec,
    *,
    repository: Path,
    folder: Path,
    lists: Sequence[tuple[bytes, list[bytes]]],
) -> Iterator[_Form]:
    """Run a form, with an empty store but for the lists, in a folder."""
    product = spec.product
    if form == "local memory":
        file, journal = folder / "windows.store", folder / "journal"
        store = MemoryStore()
        store.flush([], extra_commands=[(b"SADD", k, *v) for k, v in lists])
        file.write_bytes(store.pack())
        with Engine.open(
            repository, product=product, store=f"memory:{file}", journal=journal
        ) as engine:
            yield _Form(_locally(engine), lambda: [], lambda count: None)
        return
    if form == "device":
        with ExitStack() as stack:
            bundle, key = pack_product(repository, product, folder=folder)
            device = stack.enter_context(
                Device.open(bundle, key=key, state=folder / "device")
            )
            device.load_lists(lists)
            served = stack.enter_context(GrpcPort(device, address="127.0.0.1:0"))
            caller = stack.enter_context(_caller(f"127.0.0.1:{served.port}", spec))
            yield _Form(_served(caller), lambda: [], lambda count: None)
        return
    with ExitStack() as stack:
        if form == "local redis":
            url = stack.enter_context(EmbeddedRedis(folder)).url
        else:
            server = stack.enter_context(
                serve(
                    repository,
                    products=(product,),
                    state=folder,
                    form="fused" if form == "fused" else "ensemble",
                )
            )
            url = server.store_url
        client = stack.enter_context(redis.Redis.from_url(url))
        for key, members in lists:
            client.sadd(key, *members)

        def chunks() -> list[bytes]:
            entries: Any = client.xrange(stream_key(product))
            return [one[CHUNK_FIELD] for _, one in entries if CHUNK_FIELD in one]

        if form == "local redis":
            engine = stack.enter_context(
                Engine.open(repository, product=product, store=url, journal=url)
            )
            yield _Form(_locally(engine), chunks, lambda count: None)
            return
        caller = stack.enter_context(_caller(server.grpc_url, spec))

        def wait(count: int) -> None:
            until_s = time.monotonic() + _PATIENCE_S
            while True:
                read = map(decode_chunk, chunks())
                rows = {(one.writer, one.first_sequence): len(one) for one in read}
                if (found := sum(rows.values())) >= count:
                    break
                if time.monotonic() > until_s:
                    raise ServerError(form, f"{found} of {count} records in time")
                time.sleep(0.1)
            time.sleep(_STORED_S)

        yield _Form(_served(caller), chunks, wait)


def _caller(address: str, spec: FeatureSpec) -> Client:
    return Client(
        address,
        product=spec.product,
        inputs=wire_inputs(spec),
        fields=all_fields(spec),
        timeout_s=60.0,
    )


def pack_product(repository: Path, product: str, *, folder: Path) -> tuple[Path, Path]:
    """Pack a product; return its bundle, and the public key that verifies it."""
    private, public = folder / "release.key", folder / "release.pub"
    make_keys(private, public)
    bundle = folder / "release.bundle"
    pack(repository, product=product, key=read_private_key(private), out=bundle)
    return bundle, public


def _locally(engine: Engine) -> Decide:
    return lambda one: engine.decide(one.columns, dry_run=one.dry)


def _served(client: Client) -> Decide:
    def decide(one: Request) -> dict[str, Any]:
        (answer,) = client.decide_many(one.columns, dry_run=one.dry, in_flight=1)
        codes = [REASON_SEPARATOR.join(row) for row in answer.reason_codes]
        return {
            **{name: getattr(answer, name) for name in _OUTPUTS},
            "reason_codes": codes,
        }

    return decide


def run_form(
    form: str, product: str, *, rows: int, seed: int, newest_us: int, folder: Path
) -> Result:
    """
    Send the requests to a form; return its answers and its records.

    Args:
        form: One of FORMS.
        folder: Empty folder for its state.
    """
    repository = folder / "model_repository"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY, repository, ignore=skip)
    config = repository / f"{product}_features/config.pbtxt"
    text = config.read_text()
    config.write_text(_DEADLINE.sub(rf"\g<1>{_DEADLINE_MS}", text))
    spec = served_spec(repository, product=product)
    requests, again = traffic(spec, rows, seed=seed, newest_us=newest_us)
    result, recorded = Result(), 0
    lists = listed(spec, repository, requests)
    with open_form(
        form, spec, repository=repository, folder=folder, lists=lists
    ) as opened:
        for one in requests:
            answer = opened.decide(one)
            result.answers += _packed(answer)
            if not one.dry:
                recorded += sum(text != "" for text in answer["decision"])
        opened.wait(recorded)
        for one in again:
            result.answers += _packed(opened.decide(one))
        chunks = opened.chunks()
    if form in _IN_FILES:
        journal = folder / ("device/journal" if form == "device" else "journal")
        spool = JournalSpool(journal / product, product=product)

        def take(some: Sequence[bytes]) -> int:
            chunks.extend(some)
            return len(some)

        spool.drain(take, until_s=time.monotonic() + _PATIENCE_S)
        spool.close()
    add_records(result, chunks)
    return result


def _packed(answer: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    score = np.asarray(answer["score"], np.float32)
    score = np.where(np.isnan(score), np.float32(np.nan), score)  # one NaN of many
    degraded = np.asarray(answer["degraded"], np.uint32)
    texts = [answer[name] for name in _OUTPUTS if name not in ("score", "degraded")]
    numbers = np.stack([score.view(np.uint32), degraded], axis=1)
    return [
        (numbers[row].tobytes(), "\0".join(map(str, words)).encode())
        for row, words in enumerate(zip(*texts, strict=True))
    ]


def add_records(result: Result, chunks: Sequence[bytes]) -> None:
    """
    Add the records of chunks; those of one id follow each other.

    A chunk that came twice counts once, as for every reader: a writer sends it again if
    the stream answered late.
    """
    seen: set[tuple[str, int]] = set()
    for raw in chunks:
        chunk = decode_chunk(raw)
        common = f"{chunk.product} {chunk.release} {chunk.spec_hash} {chunk.entities}"
        for row, name in enumerate(chunk.transaction_id):
            number = chunk.writer, chunk.first_sequence + row
            if number in seen:
                continue
            seen.add(number)
            values = [common.encode(), *(ids[row] for ids in chunk.entity_id)]
            values += [column[row].tobytes() for column in chunk.fields.values()]
            for key in chunk.__struct_fields__:
                column = getattr(chunk, key)
                compared = key not in (*LEFT_OUT, "features")
                if isinstance(column, np.ndarray) and compared:
                    values.append(column[row].tobytes())
            values.append(chunk.reason_codes[row])
            packed = b"".join(len(one).to_bytes(4, "little") + one for one in values)
            result.records[name] = result.records.get(name, b"") + packed
            vector = chunk.features[row].tobytes()
            result.features[name] = result.features.get(name, b"") + vector


def differing_bits(found: bytes, wanted: bytes) -> int:
    """Count the bits that differ; a missing byte has eight."""
    size = max(len(found), len(wanted))
    both = (np.frombuffer(one, np.uint8) for one in (found, wanted))
    padded = [np.pad(one, (0, size - len(one))) for one in both]
    short = min(len(found), len(wanted))
    differ = np.bitwise_xor(*padded)[:short]
    return int(np.unpackbits(differ).sum()) + 8 * (size - short)


class Differences(msgspec.Struct, frozen=True):
    """Count the bits of a result that differ from those of another."""

    answers: int
    features: int
    journal: int

    @property
    def any(self) -> bool:
        """Return True if a bit differs."""
        return bool(self.answers or self.features or self.journal)


def compare(found: Result, wanted: Result) -> Differences:
    """Compare two results of the same requests."""

    def by_id(some: dict[bytes, bytes], others: dict[bytes, bytes]) -> int:
        names = some.keys() | others.keys()
        return sum(
            differing_bits(some.get(name, b""), others.get(name, b""))
            for name in names
            if some.get(name) != others.get(name)
        )

    pairs = zip(found.answers, wanted.answers, strict=True)
    return Differences(
        answers=sum(
            differing_bits(one, other)
            for some, others in pairs
            if some != others
            for one, other in zip(some, others, strict=True)
        ),
        features=by_id(found.features, wanted.features),
        journal=by_id(found.records, wanted.records),
    )


def run_apart(
    form: str, loops: str, product: str, *, rows: int, seed: int, newest_us: int
) -> Result:
    """
    Run a form in a process of its own, with or without compiled loops.

    Raises:
        ServerError: It failed.
    """
    with temporary_folder("equality") as folder:
        numbers = ("--rows", str(rows), "--seed", str(seed))
        words = ("--form", form, "--product", product, *numbers)
        place = ("--newest-us", str(newest_us), "--folder", str(folder))
        environment = {**os.environ}
        if loops == "numpy":
            environment[COMPILED_VARIABLE] = "0"
        done = subprocess.run(
            [sys.executable, "-m", "loadtests.equality", *words, *place],
            env=environment,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.decode(errors="replace").splitlines()[-20:]
            raise ServerError(f"{form}, {loops}", "it failed", log="\n".join(lines))
        return msgspec.msgpack.decode(done.stdout, type=Result)


def measure(options: argparse.Namespace) -> Report:
    """Run all forms and compare them with the first."""
    newest_us = time.time_ns() // 1000
    rows = -(-options.rows // len(PRODUCTS))
    lines = [
        "| product | form | loops | rows | records | features | answers | journal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    equal = True
    for product in PRODUCTS:
        wanted: Result | None = None
        for loops in LOOPS:
            for form in FORMS:
                say(f"{product}: {form}, {loops}")
                numbers = {"rows": rows, "seed": options.seed, "newest_us": newest_us}
                found = run_apart(form, loops, product, **numbers)
                wanted = wanted or found
                bits = compare(found, wanted)
                equal = equal and not bits.any
                lines.append(
                    f"| {product} | {form} | {loops} | {len(found.answers):,} "
                    f"| {len(found.records):,} | {bits.features:,} | {bits.answers:,} "
                    f"| {bits.journal:,} |"
                )
    lines.append("")
    lines.append("Bits that differ from the first line of the product.")
    lines.append(f"Not compared, of the records: {', '.join(LEFT_OUT)}.")
    return Report("\n".join(lines) + "\n", ok=equal)


def main(arguments: Sequence[str]) -> int:
    """Compare the forms, or run one of them for the process that compares."""
    parser = command_parser("equality")
    parser.add_argument("--rows", type=int, default=2_000, help="rows of all products")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for the report")
    for name in ("--form", "--product", "--newest-us", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.form is None:
        return run_command(parser, arguments, measure=measure, least={"rows": 2})
    result = run_form(
        parsed.form,
        parsed.product,
        rows=parsed.rows,
        seed=parsed.seed,
        newest_us=int(parsed.newest_us),
        folder=Path(parsed.folder),
    )
    sys.stdout.buffer.write(msgspec.msgpack.encode(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
