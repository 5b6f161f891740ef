"""
Try to forge decisions of a running server, and count the forgeries that it accepts.

    python -m loadtests.forging                 # on the machine of `tollgate up`
    python -m loadtests.forging --url 127.0.0.1:8443 --tls-ca ca.pem --token-file key

The attempts call the steps of a product by their public names, send contexts of random
bytes to the decision step, and replay and change genuine contexts. If the server's
state folder is readable here, the attempts use the private names of its steps from it,
so that they test the signatures and not the names alone. Exit status 1 if the server
accepted any.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadtests.harness import (
    Report,
    command_parser,
    run_command,
)
from tollgate.errors import InputError
from tollgate.server.address import Address, find_server
from tollgate.server.triton.control import served_name
from tollgate_client import tls_from

KINDS = ("features", "model", "decision", "trial", "made up", "changed", "replayed")
_TIMEOUT_S = 20.0
_NAMES = {"float64": "FP64", "float32": "FP32", "int64": "INT64", "uint8": "UINT8"}

Tensors = dict[str, np.ndarray[Any, Any]]


class Target(msgspec.Struct, frozen=True):
    """
    A server, as an attacker reaches it.

    Attributes:
        stub: Stub of Triton's service.
        product: The product to forge decisions of.
        metadata: Metadata of each call.
        inside: The server's own description, if its state folder is readable here.
    """

    stub: Any
    product: str
    metadata: tuple[tuple[str, str], ...]
    inside: Address | None

    def private(self, step: str) -> str:
        """Return the private name of a step if it is known, else its public one."""
        name = f"{self.product}_{step}"
        return served_name(self.inside, name) if self.inside else name


def main(arguments: Sequence[str]) -> int:
    """Make the attempts, and print a table."""
    parser = command_parser("forging")
    parser.add_argument("--product", default="fraud")
    parser.add_argument("--attempts", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, default=Path(".tollgate"))
    parser.add_argument("--url", default="", help="of a gateway; else the server's own")
    parser.add_argument("--tls-ca", type=Path)
    parser.add_argument("--token-file", type=Path)
    return run_command(parser, arguments, measure=measure)


def measure(options: argparse.Namespace) -> Report:
    """Make the attempts, and write a table."""
    inside = None if options.url else find_server(options.state)
    url = options.url or (inside.grpc_url if inside else "")
    if not url:
        problem = (
            f"no server runs in {options.state}; start `tollgate up`, or give --url"
        )
        raise InputError("--state", problem)
    metadata: tuple[tuple[str, str], ...] = ()
    if options.token_file:
        metadata = (
            ("authorization", f"Bearer {options.token_file.read_text().strip()}"),
        )
    channel = grpc.insecure_channel(url)
    if options.tls_ca:
        tls = tls_from(authority=options.tls_ca)
        trusted = grpc.ssl_channel_credentials(tls.authority)
        channel = grpc.secure_channel(url, trusted)
    with channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        target = Target(stub, options.product, metadata, inside)
        before = _refused(inside)
        outcomes = attempt(target, count=options.attempts, seed=options.seed)
        time.sleep(2.5)  # the metrics page is a second behind
        counted = _refused(inside)
    lines = [
        f"{kind:10} {number:6} {outcome}"
        for (kind, outcome), number in sorted(outcomes.items())
    ]
    lines += [
        f"counted as {reason}: {counted[reason] - before[reason]}"
        for reason in sorted(counted)
    ]
    accepted = sum(n for (_, outcome), n in outcomes.items() if outcome == "accepted")
    lines.append(f"{sum(outcomes.values())} attempts, {accepted} accepted")
    return Report("\n".join(lines), ok=not accepted)


def attempt(target: Target, *, count: int, seed: int) -> Counter[tuple[str, str]]:
    """
    Make attempts of all kinds in turn.

    Returns:
        Number of attempts by kind and outcome: `accepted`, or the error's status.
    """
    rng = np.random.default_rng(seed)
    outcomes: Counter[tuple[str, str]] = Counter()
    genuine = _genuine(target, rng) if target.inside else None
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        name, tensors = _forged(target, kind, rng, genuine=genuine)
        outcomes[kind, _send(target, name, tensors)] += 1
    return outcomes


def _genuine(target: Target, rng: np.random.Generator) -> Tensors:
    """
    Let the decision step decide a signed context, as the ensemble does; return it.

    Later uses of the returned tensors are replays.
    """
    signed = _call(target, target.private("features"), _purchase(rng))
    tensors = {**signed, "probabilities": np.array([[0.1, 0.9]], np.float32)}
    _call(target, target.private("decision"), tensors)
    return tensors


def _forged(
    target: Target, kind: str, rng: np.random.Generator, *, genuine: Tensors | None
) -> tuple[str, Tensors]:
    approved = np.array([[1, 0]], np.float32)
    synthetic_tensors = {
        "features": rng.random((1, 15)).astype(np.float32),
        "context": rng.integers(0, 256, (1, 966), np.uint8),
        "probabilities": approved,
    }
    taken = {**(genuine or synthetic_tensors), "probabilities": approved}
    if kind == "features":
        return f"{target.product}_features", _purchase(rng)
    if kind == "model":
        return f"{target.product}_model", {"features": synthetic_tensors["features"]}
    if kind == "decision":
        return f"{target.product}_decision", taken
    if kind == "trial":
        return f"{target.product}--next", _purchase(rng)
    if kind == "made up":
        return target.private("decision"), synthetic_tensors
    if kind == "changed":
        key = str(rng.choice(["features", "context"]))
        raw = taken[key].copy()
        raw.view(np.uint8)[0, rng.integers(raw.nbytes)] ^= np.uint8(1)
        return target.private("decision"), {**taken, key: raw}
    return target.private("decision"), taken


def _purchase(rng: np.random.Generator) -> Tensors:
    name = rng.bytes(8).hex().encode()
    ids = ("transaction_id", "customer_id", "terminal_id")
    return {key: np.array([[name]], np.object_) for key in ids} | {
        "amount": np.array([[4_900.0]]),
        "event_time": np.array([[time.time_ns() // 1000]], np.int64),
    }


def _send(target: Target, name: str, tensors: Tensors) -> str:
    try:
        _call(target, name, tensors)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "accepted"


def _call(target: Target, name: str, tensors: Tensors) -> Tensors:
    request = service_pb2.ModelInferRequest(model_name=name)
    for key, values in tensors.items():
        kind = _NAMES.get(values.dtype.name, "BYTES")
        request.inputs.add(name=key, datatype=kind, shape=values.shape)
        raw = values.tobytes()
        if kind == "BYTES":
            raw = b"".join(len(v).to_bytes(4, "little") + v for v in values.flat)
        request.raw_input_contents.append(raw)
    answer = target.stub.ModelInfer(
        request, timeout=_TIMEOUT_S, metadata=target.metadata
    )
    kinds = {"FP32": np.float32, "UINT8": np.uint8}
    return {
        one.name: np.frombuffer(raw, kinds[one.datatype]).reshape(one.shape)
        for one, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
        if one.datatype in kinds
    }


def _refused(inside: Address | None) -> Counter[str]:
    """Read how many requests the steps have refused, by reason."""
    found: Counter[str] = Counter()
    if inside is None:
        return found
    with urllib.request.urlopen(inside.metrics_url, timeout=5) as page:
        for line in page.read().decode().splitlines():
            if line.startswith("tollgate_refused_requests_total{"):
                reason = line.partition('reason="')[2].partition('"')[0]
                found[reason] += int(float(line.rpartition(" ")[2]))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
