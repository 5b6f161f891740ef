"""
Control a running Triton over gRPC: load, unload, read state, send requests.

Each failure of Triton becomes one ServerError with the relevant sentence of its
message.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy.typing as npt

from tollgate.errors import ServerError
from tollgate.schema import FUSED_PARAMETER, public_name
from tollgate.server.triton.private_names import private_name

LOAD_S = 60.0


class Reachable(Protocol):
    """The properties of a server that these calls need."""

    @property
    def grpc_url(self) -> str:
        """The address, "host:port"."""

    @property
    def admin_headers(self) -> dict[str, str]:
        """The gRPC metadata that opens the restricted protocols."""

    @property
    def own_repository(self) -> Path | None:
        """Folder that it reads models from, if it is known here."""

    @property
    def private_suffix(self) -> str:
        """Suffix of its private names; empty if it is not known here."""


class Endpoint(msgspec.Struct, frozen=True):
    """A server that another program started."""

    grpc_url: str
    admin_headers: dict[str, str] = {}
    own_repository: Path | None = None
    private_suffix: str = ""


def open_client(server: Reachable) -> Any:
    """
    Open Triton's client for many calls; the caller closes it.

    It shares no connection with another client of this process: a client that waits
    before it reconnects to a server that ended makes no other client wait.
    """
    from tritonclient.grpc import InferenceServerClient

    return InferenceServerClient(
        server.grpc_url, channel_args=[("grpc.use_local_subchannel_pool", 1)]
    )


@contextmanager
def connected(server: Reachable, *, over: Any = None) -> Iterator[Any]:
    """
    Open Triton's client for a block.

    Args:
        over: An open client to use, which stays open; None opens one.

    Raises:
        ServerError: Triton or gRPC raised an error inside; with one sentence of it.
    """
    import grpc
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    client = over or InferenceServerClient(server.grpc_url)
    try:
        yield client
    except (InferenceServerException, grpc.RpcError) as error:
        words = sentence(_words(error))
        if "failed to connect" in words:
            words = f"no server answers at {server.grpc_url}"
        raise ServerError("tritonserver", words) from error
    finally:
        if over is None:
            client.close()


def served_name(server: Reachable, name: str) -> str:
    """
    Return the name under which a server has a model loaded.

    For the steps of its products, this is a private name. All functions here that read
    the state of a model take the public name; those that load and unload take this one.
    """
    private, folder = private_name(name, server.private_suffix), server.own_repository
    if private != name and folder is not None and (folder / private).is_symlink():
        return private
    return name


def load_model(
    server: Reachable, name: str, *, config: str | None, timeout_s: float = LOAD_S
) -> None:
    """
    Load a model, or reload it.

    Args:
        server: A Triton in explicit mode.
        name: The model, by the name it is served under.
        config: Its complete configuration as JSON; None takes config.pbtxt.

    Raises:
        ServerError: Triton refused; with its message.
    """
    with connected(server) as client:
        client.load_model(
            name,
            headers=server.admin_headers,
            config=config,
            client_timeout=timeout_s,
        )


def unload_model(server: Reachable, name: str, *, timeout_s: float = LOAD_S) -> None:
    """Unload a model; ensembles that contain it become unavailable."""
    with connected(server) as client:
        client.unload_model(
            name, headers=server.admin_headers, client_timeout=timeout_s
        )


def is_live(server: Reachable, *, timeout_s: float = 1.0) -> bool:
    """Return whether the server answers at all."""
    host, _, port = server.grpc_url.rpartition(":")
    try:
        # gRPC waits a second before it retries a refused connection.
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError:
        return False
    try:
        with connected(server) as client:
            return bool(client.is_server_live(client_timeout=timeout_s))
    except ServerError:
        return False


def is_ready(server: Reachable, name: str, *, timeout_s: float = 5.0) -> bool:
    """
    Return whether Triton reports a model as ready.

    Triton does so even when the model's stub is dead; only a request proves that it
    works.
    """
    try:
        with connected(server) as client:
            name = served_name(server, name)
            return bool(client.is_model_ready(name, client_timeout=timeout_s))
    except ServerError:
        return False


def statistics(
    server: Reachable, name: str = "", *, timeout_s: float = 5.0
) -> Mapping[str, Any]:
    """Read Triton's counters: the entry of `model_stats` by model."""
    with connected(server) as client:
        answer = client.get_inference_statistics(
            served_name(server, name) if name else "",
            headers=server.admin_headers,
            as_json=True,
            client_timeout=timeout_s,
        )
    return {entry["name"]: entry for entry in steps_by_public_name(answer)}


def steps_by_public_name(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """
    List the entries of Triton's statistics, with steps under their public names.

    The ensembles that refuse calls of a step's public name are left out.
    """
    entries = answer.get("model_stats", [])
    private = {
        one["name"] for one in entries if public_name(one["name"]) != one["name"]
    }
    hidden = {public_name(name) for name in private}
    return [
        {**one, "name": public_name(one["name"])}
        for one in entries
        if one["name"] in private or one["name"] not in hidden
    ]


def ready_versions(
    server: Reachable, name: str, *, timeout_s: float = 5.0
) -> list[int]:
    """List the versions of a model that are loaded and answer, ascending."""
    name = served_name(server, name)
    with connected(server) as client:
        index = client.get_model_repository_index(
            headers=server.admin_headers, client_timeout=timeout_s
        )
    return sorted(
        int(model.version)
        for model in index.models
        if model.name == name and model.state == "READY"
    )


def model_config(
    server: Reachable, name: str, *, timeout_s: float = 5.0, over: Any = None
) -> dict[str, Any]:
    """Read the configuration that a model runs with, in Triton's field names."""
    with connected(server, over=over) as client:
        answer = client.get_model_config(
            served_name(server, name),
            headers=server.admin_headers,
            as_json=True,
            client_timeout=timeout_s,
        )
    config: dict[str, Any] = answer["config"]
    return config


def is_fused(server: Reachable, product: str) -> bool:
    """Return whether a server runs a product as one model, not as an ensemble."""
    return FUSED_PARAMETER in model_config(server, product).get("parameters", {})


def infer(
    server: Reachable,
    name: str,
    *,
    inputs: Mapping[str, npt.NDArray[Any]],
    parameters: Mapping[str, str | int | bool],
    timeout_s: float,
    version: int | None = None,
    over: Any = None,
) -> dict[str, npt.NDArray[Any]]:
    """
    Send one request; return every output by name.

    Args:
        server: A running Triton.
        inputs: Tensor name to values.
        parameters: Request parameters.
        version: Version to query; None lets Triton choose.
        over: A client that is open; None opens one for this request.

    Raises:
        ServerError: The request failed; with Triton's message.
    """
    from tritonclient.grpc import InferInput
    from tritonclient.utils import np_to_triton_dtype

    with connected(server, over=over) as client:
        tensors = []
        for key, values in inputs.items():
            tensor = InferInput(key, values.shape, np_to_triton_dtype(values.dtype))
            tensor.set_data_from_numpy(values)
            tensors.append(tensor)
        answer = client.infer(
            served_name(server, name),
            tensors,
            model_version="" if version is None else str(version),
            parameters=dict(parameters),
            client_timeout=timeout_s,
        )
        names = [output.name for output in answer.get_response().outputs]
        return {output: answer.as_numpy(output) for output in names}


_WRAPPING = re.compile(
    r"^(?:.*?load failed for model '[^']*': )?"
    r"(?:version \d+ is at UNAVAILABLE state: )?"
    r"(?:Internal: |Invalid argument: |Not found: |Unavailable: |Unknown: )?",
    re.DOTALL,
)


def sentence(message: str) -> str:
    """Cut Triton's wrapping and Python's traceback off a failure message: one line."""
    if message.startswith("This protocol is restricted"):
        return "the control API is closed: the admin header is missing or wrong"
    text = _WRAPPING.sub("", message, count=1)
    text = re.split(r"\n\s*At:\n", text)[0]
    text = re.sub(r"^[\w.]*(?:Exception|Error): ", "", text.strip())
    return " ".join(text.split()).rstrip(";").strip()


def _words(error: Exception) -> str:
    text = getattr(error, "message", None) or getattr(error, "details", None)
    words = text() if callable(text) else ""
    return str(words or error)
