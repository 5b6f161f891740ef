"""
Read the settings once, at start, and pass them on.

Defaults < tollgate.yaml in the current folder < TOLLGATE_* environment < flags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from tollgate.errors import ArgumentError, InputError
from tollgate.suggestions import suggest

PREFIX = "TOLLGATE_"
SETTINGS_FILE = "tollgate.yaml"
ADDRESSES = (
    "store_url",
    "journal_url",
    "feed_url",
    "alarms_url",
    "webhook_url",
    "otlp_endpoint",
)
_KEY_PASSWORD = re.compile(r"(\bssl_password=)[^&]*")
_PASSWORD = re.compile(r"://[^/?@]*:[^/?]*@|\bssl_password=.")

_Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Locations, ports and options of an installation.

    Attributes:
        repository: Model repository that is served: a folder, or an address such as
            s3://bucket/models.
        state: Folder for a run's files: store, logs, copies.
        product_names: Ensembles that are served, joined by commas; the key is
            `product`.
        grpc_port: TCP port for requests; 0 takes a free one.
        metrics_port: TCP port for Prometheus; 0 takes a free one.
        store_url: Online store that runs elsewhere; empty starts one here.
        store_server: The redis-server or valkey-server to start, by its path or its
            name on PATH; empty for the one that pip installed.
        journal_url: Redis for records of decisions; None: the store's, empty: nowhere.
        feed_url: Redis or MQTT broker that carries events for `tollgate stream`, and
            readings for `tollgate alarms run`; empty: the store.
        alarms_url: Redis or MQTT broker that carries alarms; empty: that of the
            readings.
        webhook_url: Receiver of alarms, for `tollgate alarms deliver`.
        model_config_name: Named configuration of models that have it; empty for none.
        cache_mb: Memory for Triton's response cache, for models whose configuration
            enables it; 0: none.
        allocator: Memory allocator library of the server, its steps and its own Redis,
            "none" for the system's; empty: jemalloc where the machine has it.
        spool: Folder of purchases that the store missed; empty: in the state folder.
        require_approval: True if a release needs a second person.
        arrival_quiet_s: Time that the files of a version copied in by a person must be
            unchanged before an incomplete one counts as bad.
        staging: True if the server decides for no caller, so that `tollgate tune` may
            load it and restart its steps.
        capacity_per_s: Measured capacity of this server in decisions a second, for
            metrics and alerts; 0 when that is not known.
        otlp_endpoint: Collector that traces of requests are sent to, over HTTP and
            without /v1/traces; empty uses OpenTelemetry's own variables.
        trace_rate: One of this many requests without trace context is traced; 0: none.
        form: Form in which products are served: as an "ensemble" of three models, or
            "fused" into one; empty for that of each product's slo.yaml.
    """

    repository: str = "model_repository"
    state: str = ".tollgate"
    product_names: str = msgspec.field(default="fraud", name="product")
    grpc_port: _Port = 8001
    metrics_port: _Port = 8002
    store_url: str = ""
    store_server: str = ""
    journal_url: str | None = None
    feed_url: str = ""
    alarms_url: str = ""
    webhook_url: str = ""
    model_config_name: str = ""
    cache_mb: Annotated[int, msgspec.Meta(ge=0)] = 0
    allocator: str = ""
    spool: str = ""
    require_approval: bool = False
    arrival_quiet_s: float = 30.0
    staging: bool = False
    capacity_per_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    otlp_endpoint: str = ""
    trace_rate: int = 0
    form: Literal["", "ensemble", "fused"] = ""

    @property
    def products(self) -> tuple[str, ...]:
        """
        Return the ensembles that are served, at least one.

        Raises:
            InputError: A name is empty, or appears twice.
        """
        names = tuple(name.strip() for name in self.product_names.split(","))
        if "" in names or len(set(names)) < len(names):
            problem = f"{self.product_names!r}: each product is named once"
            raise ArgumentError("product", problem)
        return names

    @property
    def product(self) -> str:
        """
        Return the ensemble that a command works on.

        Raises:
            InputError: Several are served, so the user must name one.
        """
        if len(self.products) > 1:
            raise ArgumentError(
                "product", f"{self.product_names} are several; name one"
            )
        return self.products[0]

    @property
    def repository_path(self) -> Path:
        """
        Return the model repository as an absolute path.

        Raises:
            InputError: It is in an object store, which not every command reads.
        """
        if self.repository_url:
            problem = f"{self.repository} is in an object store; here, name a folder"
            raise ArgumentError("repository", problem)
        return Path(self.repository).resolve()

    @property
    def repository_url(self) -> str:
        """Return the repository's address in an object store; empty for a folder."""
        return self.repository if "://" in self.repository else ""

    @property
    def repository_name(self) -> str:
        """Return a name of the repository, folder or address, that can be compared."""
        return self.repository_url.rstrip("/") or str(self.repository_path)

    @property
    def state_path(self) -> Path:
        """Return the state folder as an absolute path."""
        return Path(self.state).resolve()

    def shown(self) -> dict[str, Any]:
        """Return the settings to print: passwords in addresses are masked."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        for name in ADDRESSES:
            head, at, tail = (shown[name] or "").rpartition("@")
            if at:
                shown[name] = f"{head.partition('://')[0]}://***@{tail}"
            if shown[name]:
                shown[name] = _KEY_PASSWORD.sub(r"\1***", shown[name])
        place = self.webhook_url.partition("://")
        if place[2].partition("/")[2]:  # the path of a webhook is often its secret
            host = place[2].partition("/")[0].rpartition("@")[2]
            shown["webhook_url"] = f"{place[0]}://{host}/***"
        return shown

    def __repr__(self) -> str:
        """Format the settings without secrets."""
        return f"Settings({self.shown()!r})"


def holds_password(address: str) -> bool:
    """Return whether an address contains a password, of a user or of a TLS key."""
    return bool(_PASSWORD.search(address))


def load_settings(
    *, environment: Mapping[str, str], folder: Path, flags: Mapping[str, Any]
) -> Settings:
    """
    Merge the four sources.

    Args:
        environment: Variables; those that start with TOLLGATE_ must be settings.
        folder: Folder that may contain tollgate.yaml.
        flags: Command-line options; None for an option that was not given.

    Raises:
        InputError: A key is unknown or a value has the wrong type; names the source.
    """
    merged: dict[str, Any] = {}
    path = folder / SETTINGS_FILE
    if path.exists():
        merged |= _from_file(path)
    named = {
        name: value for name, value in environment.items() if name.startswith(PREFIX)
    }
    for name, value in named.items():
        key = name[len(PREFIX) :].lower()
        if key not in _KEYS:
            known = [_variable(one) for one in _KEYS]
            problem = f"no setting reads this variable; {suggest(name, known)}"
            raise InputError(name, problem)
        merged |= _checked(key, value, source=name)
    for key, value in flags.items():
        if value is not None:
            merged |= _checked(key, value, source=f"--{key.replace('_', '-')}")
    return msgspec.convert(merged, Settings, strict=False)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        content = msgspec.yaml.decode(path.read_bytes(), type=dict[str, Any] | None)
    except OSError as exc:
        raise InputError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        problem = f"is not YAML of settings: {' '.join(str(exc).split())}"
        raise InputError(path, problem) from exc
    found: dict[str, Any] = {}
    for key, value in (content or {}).items():
        if key not in _KEYS:
            raise InputError(path, f"is no setting; {suggest(key, _KEYS)}", where=key)
        found |= _checked(key, value, source=str(path), where=key)
    return found


_KEYS = Settings.__struct_encode_fields__


def _variable(key: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + key.upper()


def _checked(key: str, value: Any, *, source: str, where: str = "") -> dict[str, Any]:
    """Check one setting's value; return a mapping of it alone, for merging."""
    try:
        msgspec.convert({key: value}, Settings, strict=False)
    except msgspec.ValidationError as exc:
        problem = str(exc).partition(" - at ")[0]
        raise InputError(source, f"{value!r:.80}: {problem}", where=where) from exc
    return {key: value}
