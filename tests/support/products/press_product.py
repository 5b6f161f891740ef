"""A product whose rows are readings of machines, with hysteresis and maintenance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.products.plain_product import release_simple_model, write_product
from tollgate.features.spec.spec_definition import FeatureSpec

NAME = "press"
SPEC = """\
version: 1
product: press
amount: false
entities:
  machine: {key: machine_id, hop: 0}
lateness: 1d
fields:
  - {name: temperature, type: number, decimals: 1}
features:
  - {name: temperature, field: temperature, default: .nan}
  - {name: readings_1h, entity: machine, aggregate: count, window: 1h, default: 1}
"""
POLICY = """\
version: 1
product: press
labels: [fine, broken]
score: broken
thresholds: {review: 0.9, decline: 0.95}
fallback: {model_output: review}
lists:
  - {name: serviced, of: machine_id, meaning: allow}
rules:
  - {name: warm, owner: plant, when: {temperature: {ge: 80}}, at_least: review,
     code: TEMPERATURE_WARM}
  - {name: hot, owner: plant, when: {temperature: {ge: 95}}, at_least: decline,
     code: TEMPERATURE_HOT}
  - {name: in_service, owner: plant, when: {serviced: true}, at_most: approve,
     code: MAINTENANCE}
hysteresis:
  entity: machine
  of: 5
  at_least: 3
  hold: 60s
  cool_down: 10m
  maintenance: in_service
reasons:
  SCORE_REVIEW: The machine looks unusual.
  SCORE_DECLINE: The machine looks broken.
  MODEL_UNAVAILABLE: No score could be made.
  TEMPERATURE_WARM: The temperature of this reading is 80 degrees or more.
  TEMPERATURE_HOT: The temperature of this reading is 95 degrees or more.
  MAINTENANCE: The machine is being serviced.
  RAISED: Three of the newest five readings of this machine reached this level.
  HELD: An alarm of this machine lasts a minute at least.
  UNCONFIRMED: Fewer than three of the newest five readings reached a higher level.
  COOLING_DOWN: An alarm of this machine ended less than ten minutes ago.
  LATE: Five newer readings of this machine came before.
"""


def write_press(
    repository: Path, *, policy_text: str = POLICY, store_deadline_ms: int = 5_000
) -> FeatureSpec:
    """Write the product with its release; a busy machine's store may be late."""
    spec = write_product(
        repository,
        spec_text=SPEC,
        policy_text=policy_text,
        store_deadline_ms=store_deadline_ms,
    )
    release_simple_model(repository, spec)
    return spec


def readings(*rows: tuple[str, str, int, float]) -> dict[str, list[Any]]:
    """Make columns of readings: id, machine, time in µs, temperature."""
    ids, machines, times, temperatures = zip(*rows, strict=True)
    return {
        "transaction_id": list(ids),
        "machine_id": list(machines),
        "event_time": list(times),
        "temperature": list(temperatures),
    }
