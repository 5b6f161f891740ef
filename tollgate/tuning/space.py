"""
The search space: form of the product, batcher and instances, as data.

It excludes queue bounds, queue timeouts and priorities: they stall Triton's batcher
(docs/adr/0001-batching-without-delay.md). It also leaves the steps that batch requests
as they are: a delay is longer or shorter, and each step keeps its share of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
import numpy as np

from tollgate.errors import ArgumentError
from tollgate.repository.serving_form import QUEUE_DELAY_US
from tollgate.repository.slo import Form
from tollgate.schema import MAX_BATCH_ROWS

_LONGEST_US = 100_000
_MOST_INSTANCES, _MOST_THREADS = 32, 64
_NONE = "none"


class Candidate(msgspec.Struct, frozen=True, order=True):
    """
    Settings to try.

    Of the attributes, a fused product uses `threads` and `fused_queue_delay_us`, an
    ensemble all others.

    Attributes:
        delay_us: max_queue_delay_microseconds of all steps together, the delay of a
            lone request; each step keeps its share.
        preferred: preferred_batch_size of the model step; 0 for none.
        threads: intra_op_thread_count of the model step.
        features_instances: Instances of the feature step.
        model_instances: Instances of the model step.
        decision_instances: Instances of the decision step.
        form: Form in which the product is served.
        fused_queue_delay_us: max_queue_delay_microseconds of the fused model.
    """

    delay_us: int
    preferred: int = 0
    threads: int = 1
    features_instances: int = 1
    model_instances: int = 1
    decision_instances: int = 1
    form: Form = "ensemble"
    fused_queue_delay_us: int = QUEUE_DELAY_US

    def __str__(self) -> str:
        """Describe it in one line of a table."""
        threads = f"{self.threads} thread" + ("s" if self.threads > 1 else "")
        if self.form == "fused":
            return f"fused, delay {self.fused_queue_delay_us / 1000:g} ms, {threads}"
        preferred = f" prefers {self.preferred}" if self.preferred else ""
        instances = (
            self.features_instances,
            self.model_instances,
            self.decision_instances,
        )
        return (
            f"ensemble, delay {self.delay_us / 1000:g} ms{preferred}, instances "
            f"{'/'.join(map(str, instances))}, {threads}"
        )


KNOBS = Candidate.__struct_fields__

FORMS: tuple[Form, ...] = get_args(Form)
Space = Mapping[str, tuple[Any, ...]]  # knob -> values to try: numbers, or forms

THROUGHPUT: Space = {
    "delay_us": (0, 500, 1000, 2500, 5000),
    "preferred": (0, 4, 8, 16),
    "threads": (1, 2),
    "features_instances": (1, 2),
    "model_instances": (1, 2),
    "decision_instances": (1, 2),
    "form": FORMS,
    "fused_queue_delay_us": (0, 500, 1000, 2500),
}
# With one request in flight there is nothing to batch it with, or to share.
LOW_LATENCY: Space = {
    "delay_us": (0,),
    "preferred": (0,),
    "threads": (1, 2),
    "form": FORMS,
    "fused_queue_delay_us": (0,),
}

_LIMITS = {
    "delay_us": (0, _LONGEST_US),
    "fused_queue_delay_us": (0, _LONGEST_US),
    "preferred": (0, MAX_BATCH_ROWS),
    "threads": (1, _MOST_THREADS),
} | {name: (1, _MOST_INSTANCES) for name in KNOBS if name.endswith("_instances")}


def narrowed(space: Space, said: Sequence[str]) -> Space:
    """
    Replace values of a space by values from the command line.

    Args:
        space: Knob -> values.
        said: "knob=value,value"; for `preferred`, "none" is a value.

    Raises:
        ArgumentError: A knob is unknown, or a value is not valid for it.
    """
    changed = dict(space)
    for text in said:
        knob, equals, values = text.partition("=")
        if knob not in KNOBS or not equals:
            problem = f"{text!r} is not KNOB=VALUE,…; knobs: {', '.join(KNOBS)}"
            raise ArgumentError("values", problem)
        changed[knob] = tuple(_value(knob, one) for one in values.split(","))
    return changed


def _value(knob: str, text: str) -> int | str:
    if knob == "form":
        if text.strip() not in FORMS:
            raise ArgumentError("values", f"form: {text!r} is not {' or '.join(FORMS)}")
        return text.strip()
    low, high = _LIMITS[knob]
    word = "0" if knob == "preferred" and text == _NONE else text.strip()
    if not word.isdecimal() or not low <= int(word) <= high:
        raise ArgumentError("values", f"{knob}: {text!r} is not {low} to {high}")
    return int(word)


def candidates(
    space: Space, base: Candidate, *, most: int, cores: int, seed: int
) -> list[Candidate]:
    """
    Choose the candidates to try next to the current settings.

    First the other form, then every setting that differs in one knob of its form, then
    others drawn at random.

    Args:
        space: Knob -> values; knobs that it lacks are not changed.
        cores: Cores of the server; more threads than that are not tried.
        seed: The same seed gives the same draw.

    Returns:
        Distinct candidates, none of them `base`.
    """
    axes = [space.get(knob, (getattr(base, knob),)) for knob in KNOBS]
    every = {
        _plain(Candidate(*values), base)
        for values in itertools.product(*axes)
        if _fits(Candidate(*values), cores)
    } - {base}
    near = sorted(
        (one for one in every if _differences(one, base) <= 1),
        key=lambda one: (_differences(one, base), one),
    )
    far = sorted(every - set(near))
    order = np.random.default_rng(seed).permutation(len(far))
    return [*near, *(far[place] for place in order)][:most]


def _plain(candidate: Candidate, base: Candidate) -> Candidate:
    """Normalize a candidate, so that equal settings are tried once."""
    delay_us = candidate.fused_queue_delay_us
    if candidate.form == "fused":  # the settings of the steps do not count
        threads = candidate.threads
        return msgspec.structs.replace(
            base, form="fused", threads=threads, fused_queue_delay_us=delay_us
        )
    # A batch that waits for nothing prefers no size.
    pointless = not candidate.delay_us or candidate.preferred == MAX_BATCH_ROWS
    return msgspec.structs.replace(
        candidate,
        preferred=0 if pointless else candidate.preferred,
        fused_queue_delay_us=base.fused_queue_delay_us,
    )


def _fits(candidate: Candidate, cores: int) -> bool:
    # More would break rule TG403 of `tollgate check`.
    instances = 1 if candidate.form == "fused" else candidate.model_instances
    return candidate.threads == 1 or candidate.threads * instances <= cores


def _differences(one: Candidate, other: Candidate) -> int:
    """Count the knobs that differ, without the form."""
    knobs = [knob for knob in KNOBS if knob != "form"]
    return sum(getattr(one, knob) != getattr(other, knob) for knob in knobs)
