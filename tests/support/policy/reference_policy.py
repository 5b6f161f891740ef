"""A policy read row by row, the slow and obvious way: what `decide` is held against."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tollgate.schema import Degraded

LEVELS = ["approve", "review", "decline"]
OWN = ["MODEL_UNAVAILABLE", "SCORE_DECLINE", "SCORE_REVIEW", "ESSENTIAL_MISSING"]
COMPARE = {
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "le": lambda a, b: a <= b,
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}

Row = dict[str, Any]  # name -> number, word, truth; None where there is none


def time_us(text: str) -> int:
    """Read a time of the file."""
    return int(np.datetime64(text.rstrip("Z"), "us").astype(int))


def one_holds(value: Any, wanted: Any, *, float32: bool) -> bool:
    """Tell whether one condition holds for one value."""
    if isinstance(wanted, dict) and "missing" in wanted:
        return (value is None) is wanted["missing"]
    if isinstance(wanted, bool):
        return value is wanted
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    if isinstance(wanted, str):
        return value == wanted
    if isinstance(wanted, list):
        return value in wanted
    if "not" in wanted:
        return value not in wanted["not"]
    return all(
        COMPARE[name](value, float(np.float32(limit)) if float32 else limit)
        for name, limit in wanted.items()
    )


def all_hold(when: dict[str, Any], row: Row) -> bool:
    """Tell whether all conditions hold."""
    return all(
        one_holds(row[name], wanted, float32=name.startswith("f_"))
        for name, wanted in when.items()
    )


def score_of(doc: dict[str, Any], chances: list[float]) -> float | None:
    """Compute the score of one row; None when there is no usable one."""
    if not all(0 <= one <= 1 for one in chances):
        return None
    within = doc["fallback"].get("sum_within")
    if within is not None and abs(sum(chances) - 1.0) > within:
        return None
    how = doc["score"]
    labels = doc["labels"]
    if isinstance(how, str):
        return chances[labels.index(how)]
    if "weights" in how:
        parts = [
            chance * how["weights"][label]
            for label, chance in zip(labels, chances, strict=True)
            if label in how["weights"]
        ]
        found = min(sum(parts), 1.0)
    else:
        found = chances[labels.index(how["of"])]
    if how.get("decimals"):
        scale = 10.0 ** how["decimals"]
        found = round(found * scale) / scale
    return found


def slow_decide(
    doc: dict[str, Any], row: Row, *, chances: list[float], event_time_us: int
) -> dict[str, Any]:
    """Decide one row of a policy that is a dict as YAML has it."""
    early = slow_decide_before_model(doc, row, event_time_us=event_time_us)
    if early is not None:
        return early
    row, codes = dict(row), set()
    score = None if row["MODEL_OUTPUT"] else score_of(doc, chances)
    row["MODEL_OUTPUT"] = score is None
    meanings = meanings_of(doc)
    instead = [one["fallback"] for bit, one in meanings.items()
               if row[bit] and "fallback" in one]  # fmt: skip
    used = None if instead else score
    row["score"] = used
    for label, chance in zip(doc["labels"], chances, strict=True):
        row[label] = None if used is None else chance
    segments = doc.get("segments", [])
    inside = [at for at, one in enumerate(segments) if all_hold(one["when"], row)]
    assert len(inside) <= 1
    own = segments[inside[0]] if inside else {}
    limits = own.get("thresholds", doc["thresholds"])
    fallback = own.get("fallback", doc["fallback"])["model_output"]
    level = 0
    if score is None:
        level = LEVELS.index(fallback)
        codes.add("MODEL_UNAVAILABLE")
    elif used is not None and "decline" in limits and used >= limits["decline"]:
        level = 2
        codes.add("SCORE_DECLINE")
    elif used is not None and used >= limits["review"]:
        level = 1
        codes.add("SCORE_REVIEW")
    level = max([level, *map(LEVELS.index, instead)])
    level, held = slow_rules(
        doc, row, level=level, codes=codes, event_time_us=event_time_us,
        segment=own.get("name", "other"),
    )  # fmt: skip
    level = slow_meanings(doc, row, level=level, codes=codes)
    return {
        "decision": level,
        "score": math.nan if score is None else float(np.float32(score)),
        "codes": in_order(doc, codes),
        "model_output": row["MODEL_OUTPUT"],
        "rules": sum(1 << at for at in held),
        "segment": inside[0] + 1 if inside else 0,
    }


def meanings_of(doc: dict[str, Any]) -> dict[str, dict[str, str]]:
    """List the bits that mean something."""
    found = {bit: one for bit, one in doc.get("degraded", {}).items() if one != "none"}
    found.setdefault(
        "ESSENTIAL_MISSING", {"at_least": "review", "code": "ESSENTIAL_MISSING"}
    )
    return found


def slow_meanings(doc: dict[str, Any], row: Row, *, level: int, codes: set[str]) -> int:
    """Raise the level as the bits of the row require."""
    for bit, one in meanings_of(doc).items():
        if row[bit]:
            codes.add(one["code"])
            level = max(level, LEVELS.index(one.get("at_least", "approve")))
    return level


def in_order(doc: dict[str, Any], codes: set[str]) -> str:
    """Join codes in the order of an answer."""
    order = [*OWN, *(one["code"] for one in meanings_of(doc).values())]
    order += [one["code"] for one in doc["rules"]]
    return "|".join(code for code in dict.fromkeys(order) if code in codes)


def slow_decide_before_model(
    doc: dict[str, Any], row: Row, *, event_time_us: int
) -> dict[str, Any] | None:
    """Decide one row by the first rule with `before_model` that holds, if one does."""
    row = {name: one for name, one in row.items() if name not in doc["labels"]}
    row["MODEL_OUTPUT"] = False
    names = [one["name"] for one in doc.get("segments", [])]
    inside = [name for name, one in zip(names, doc.get("segments", []), strict=True)
              if all_hold(one["when"], row)]  # fmt: skip
    segment = inside[0] if inside else "other"
    for at, rule in enumerate(doc["rules"]):
        since, until = rule.get("from"), rule.get("until")
        if (
            "before_model" not in rule
            or segment not in rule.get("segments", [segment])
            or (since and event_time_us < time_us(since))
            or (until and event_time_us >= time_us(until))
            or not all_hold(rule["when"], row)
        ):
            continue
        codes = {rule["code"]}
        level = LEVELS.index(rule["before_model"])
        level = slow_meanings(doc, row, level=level, codes=codes)
        return {
            "decision": level,
            "score": math.nan,
            "codes": in_order(doc, codes),
            "model_output": False,
            "rules": 1 << at,
            "segment": names.index(segment) + 1 if inside else 0,
        }
    return None


def slow_rules(
    doc: dict[str, Any],
    row: Row,
    *,
    level: int,
    codes: set[str],
    segment: str,
    event_time_us: int,
) -> tuple[int, list[int]]:
    """Apply the rules one after the other; tells the level, and which of them held."""
    held = []
    for at, rule in enumerate(doc["rules"]):
        if segment not in rule.get("segments", [segment]):
            continue
        if "from" in rule and event_time_us < time_us(rule["from"]):
            continue
        if "until" in rule and event_time_us >= time_us(rule["until"]):
            continue
        if "before_model" in rule or not all_hold(rule["when"], row):
            continue
        held.append(at)
        if "at_least" in rule:
            level = max(level, LEVELS.index(rule["at_least"]))
            codes.add(rule["code"])
        elif level > LEVELS.index(rule["at_most"]):
            level = LEVELS.index(rule["at_most"])
            codes.add(rule["code"])
        if rule.get("stop"):
            break
    return level, held


BITS = [bit.name for bit in Degraded]
