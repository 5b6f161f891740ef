"""
Run a server with little shared memory and few descriptors; some callers hang up.

    python -m loadtests.small_resources                        # needs root: it mounts
    python -m loadtests.small_resources --shm-mib 128 --files 512 --seconds 60

It starts `tollgate up` in its own mount namespace, with a small tmpfs on /dev/shm
and a limit of open files. Once it is ready, a file fills the rest of /dev/shm.
Good callers request one decision at a time. Rude ones send a request with an id as long
as the gateway lets pass, and close the connection before the answer. The command counts
the good requests that failed, with the reason, and everything that the supervisor had
to recover. Exit status 1 if there was either.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadtests.harness import (
    REPOSITORY,
    Report,
    command_parser,
    run_command,
    temporary_folder,
)
from tollgate.load.surroundings import measured_on
from tollgate.testing.supervised import Supervised

_MOUNT = 'mount -t tmpfs -o size="$0"m tmpfs /dev/shm && exec "$@"'
_TIMEOUT_S = 10.0
_RUDE_BYTES = 120_000  # the gateway's limit of a request is 128 KiB
_GOOD, _RUDE = 4, 24  # callers


def main(arguments: Sequence[str]) -> int:
    """Run, and print the results of the requests."""
    parser = command_parser("small_resources")
    parser.add_argument("--shm-mib", type=int, default=64)
    parser.add_argument("--files", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    return run_command(parser, arguments, measure=measure)


def measure(options: argparse.Namespace) -> Report:
    """Serve with small resources, and count the results of the requests."""
    limits = (
        *("unshare", "--mount", "sh", "-c", _MOUNT, str(options.shm_mib)),
        *("prlimit", f"--nofile={options.files}:{options.files}"),
    )
    with temporary_folder("small") as folder:
        product = Supervised(
            REPOSITORY,
            folder / "state",
            python=options.python.absolute(),
            limits=limits,
        )
        try:
            product.wait(lambda: bool(product.health_url) and product.ready())
            _fill(Path(f"/proc/{product.process.pid}/root/dev/shm"))
            outcomes = asyncio.run(send(product.grpc_url, options.seconds))
            recovered = product.recovered_parts()
        finally:
            product.stop()
    lines = [f"{count:7,}  {outcome}" for outcome, count in outcomes.most_common()]
    lines += [
        f"recovered: {', '.join(recovered) or 'nothing'}",
        f"{measured_on()}; /dev/shm of {options.shm_mib} MiB, {options.files} files, "
        f"{options.seconds:g} s",
    ]
    failed = any(one.startswith("good request failed") for one in outcomes)
    return Report("\n".join(lines), ok=not failed and not recovered)


def _fill(shm: Path) -> None:
    """Fill all free memory of a tmpfs; the end of its namespace frees it."""
    with (shm / "filler").open("wb") as filler:
        numbers = os.statvfs(shm)
        os.posix_fallocate(filler.fileno(), 0, numbers.f_bavail * numbers.f_frsize)


async def send(url: str, seconds: float) -> Counter[str]:
    """Send good and rude requests for a while; return the number of each outcome."""
    outcomes: Counter[str] = Counter()
    until_s = time.monotonic() + seconds
    good = [_good(url, until_s, outcomes, caller) for caller in range(_GOOD)]
    rude = [_rude(url, until_s, outcomes, caller) for caller in range(_RUDE)]
    await asyncio.gather(*good, *rude)
    return outcomes


async def _good(url: str, until_s: float, outcomes: Counter[str], caller: int) -> None:
    async with grpc.aio.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        number = 0
        while time.monotonic() < until_s:
            number += 1
            try:
                request = _request(f"good-{caller}-{number}")
                await stub.ModelInfer(request, timeout=_TIMEOUT_S)
                outcomes["good request answered"] += 1
            except grpc.aio.AioRpcError as error:
                words = f"{error.code().name} {error.details() or ''}"
                outcomes[f"good request failed: {words:.90}"] += 1
            await asyncio.sleep(0.01)


async def _rude(url: str, until_s: float, outcomes: Counter[str], caller: int) -> None:
    rng = np.random.default_rng(caller)
    request = _request("x" * _RUDE_BYTES)
    while time.monotonic() < until_s:
        channel = grpc.aio.insecure_channel(url)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelInfer(request, timeout=_TIMEOUT_S)
        await asyncio.sleep(rng.uniform(0.02, 0.4))
        call.cancel()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await call
        await channel.close()
        outcomes["rude request given up"] += 1


def _request(name: str) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="fraud")
    ids = ("transaction_id", "customer_id", "terminal_id")
    columns = [(one, "BYTES", _words(name if one == ids[0] else "a")) for one in ids]
    columns.append(("amount", "FP64", np.array([4_900.0]).tobytes()))
    now_us = time.time_ns() // 1000
    columns.append(("event_time", "INT64", np.array([now_us]).tobytes()))
    for key, kind, raw in columns:
        request.inputs.add(name=key, datatype=kind, shape=(1, 1))
        request.raw_input_contents.append(raw)
    return request


def _words(text: str) -> bytes:
    return len(text).to_bytes(4, "little") + text.encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
