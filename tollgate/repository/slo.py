"""Read slo.yaml: a product's latency objectives, and how the time is divided."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from tollgate.errors import RepositoryError
from tollgate.repository.configs import CONFIG_FILE
from tollgate.suggestions import unknown_key

SLO_FILE = "slo.yaml"
_NAMES = re.compile(r'\bname:\s*"(\w+)"')  # of tensors, in a config.pbtxt

Form = Literal["ensemble", "fused"]

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class Layers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The division of an answer's time, ms; a missing key has the default given here.

    The defaults are the field's table for 50 ms. docs/budget.md defines where one layer
    ends and the next begins.

    Attributes:
        request: Until the feature step has the request in its queue.
        features: The feature step and its queue, including the queue delay.
        model: The model step and its queue.
        post_processing: The decision step and its queue.
        response: From the decision to the caller.
        reserve: Time that is not planned for anything.
        candidates: The part of the feature step in which a product that ranks finds
            its candidates; the time before it is in `features`.
    """

    request: _Positive = 2.0
    features: _Positive = 15.0
    model: _Positive = 20.0
    post_processing: _Positive = 3.0
    response: _Positive = 2.0
    reserve: _NotNegative = 8.0
    candidates: _NotNegative = 0.0

    @property
    def total_ms(self) -> float:
        """Sum of all layers, ms."""
        return float(sum(msgspec.structs.astuple(self)))

    def scaled(self, by: float) -> Layers:
        """Multiply all layers by a factor."""
        return Layers(*(one * by for one in msgspec.structs.astuple(self)))


# The table of a product that ranks, for 100 ms.
RANKING_LAYERS = Layers(
    request=4.0,
    features=10.0,
    candidates=12.0,
    model=40.0,
    post_processing=20.0,
    response=4.0,
    reserve=10.0,
)


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The content of a slo.yaml; a missing key has the default given here.

    Attributes:
        latency_objective_ms: The SLA: maximum time to an answer, ms.
        latency_target_ms: The SLO: target time to an answer, ms.
        objective_percent: Share of answers that keep the SLA, percent.
        budget_ms: Division of the SLA's time; None for the field's table, scaled to it.
        target_ms: Division of the SLO's time; None if only the SLA is measured.
        model_budget_us_per_row: Time that a row may take in the model at the largest
            batch; None derives it from the model's layer.
        form: Form in which the product is served, unless a setting says otherwise.
    """

    latency_objective_ms: _Positive = 50.0
    latency_target_ms: _Positive = 20.0
    objective_percent: Annotated[float, msgspec.Meta(gt=0, lt=100)] = 99.9
    budget_ms: Layers | None = None
    target_ms: Layers | None = None
    model_budget_us_per_row: _Positive | None = None
    form: Form = "ensemble"

    @property
    def layers_ms(self) -> Layers:
        """Division of the SLA's time, ms."""
        by = self.latency_objective_ms / Layers().total_ms
        return self.budget_ms or Layers().scaled(by)


def read_slo(repository: Path, *, product: str) -> Slo:
    """
    Read the slo.yaml next to a product's ensemble; the defaults if there is none.

    Raises:
        RepositoryError: It cannot be read, has another key or a wrong value, or its
            layers together take too long; names the key.
    """
    path = repository / product / SLO_FILE
    try:
        content = path.read_bytes() if path.exists() else b"{}"
        raw = msgspec.yaml.decode(content or b"{}")
        _require_keys(path, raw)
        slo = _ranking_slo(raw) if _ranks(path.parent) else msgspec.convert(raw, Slo)
    except OSError as exc:
        raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise RepositoryError(path, " ".join(str(exc).split())) from exc
    for key, layers, limit_ms in (
        ("budget_ms", slo.layers_ms, slo.latency_objective_ms),
        ("target_ms", slo.target_ms, slo.latency_target_ms),
    ):
        # A sum of decimals is not exact.
        if layers is not None and layers.total_ms > limit_ms * (1 + 1e-9):
            problem = f"adds up to {layers.total_ms:g} ms of {limit_ms:g}"
            raise RepositoryError(path, problem, where=key)
    return slo


def _ranks(folder: Path) -> bool:
    """Return whether the ensemble in a folder ranks; not if it cannot be read."""
    try:
        text = (folder / CONFIG_FILE).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    # The text alone: an operation parses each configuration once, and not for this.
    names = set(_NAMES.findall(text))
    return {"items", "release"} <= names and "decision" not in names


def _ranking_slo(raw: Any) -> Slo:
    """Convert the content of a slo.yaml, with the defaults of a product that ranks."""
    defaults = msgspec.structs.asdict(RANKING_LAYERS)
    tables = {
        key: {**defaults, **raw[key]}
        for key in ("budget_ms", "target_ms")
        if isinstance(raw, dict) and isinstance(raw.get(key), dict)
    }
    slo = msgspec.convert({**raw, **tables} if tables else raw, Slo)
    if slo.budget_ms is not None:
        return slo
    by = slo.latency_objective_ms / RANKING_LAYERS.total_ms
    return msgspec.structs.replace(slo, budget_ms=RANKING_LAYERS.scaled(by))


def _require_keys(path: Path, raw: object) -> None:
    """Refuse an unknown key; name the nearest one and all valid ones."""
    parts: dict[str, tuple[object, type[msgspec.Struct]]] = {"": (raw, Slo)}
    if isinstance(raw, dict):
        parts |= {name: (raw.get(name), Layers) for name in ("budget_ms", "target_ms")}
    for part, (content, struct) in parts.items():
        key, problem = unknown_key(content, struct)
        if problem:
            raise RepositoryError(
                path, problem, where=".".join(filter(None, (part, key)))
            )
