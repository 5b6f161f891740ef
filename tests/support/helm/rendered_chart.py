"""The chart with every file of values, and what runs in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import chart

ALL = {name: chart.rendered(chart.values_of(name))[0] for name in chart.names()}


def pods(objects: chart.Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    """List the pods that objects make, by the name of what makes them."""
    for key, one in objects.items():
        spec = one.get("spec", {})
        if one["kind"] == "Pod":
            yield key, spec
        elif one["kind"] == "Deployment":
            yield key, spec["template"]["spec"]
        elif one["kind"] == "CronJob":
            yield key, spec["jobTemplate"]["spec"]["template"]["spec"]


def containers(objects: chart.Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    """List the containers, those that run first among them."""
    for key, pod in pods(objects):
        for one in (*pod.get("initContainers", []), *pod["containers"]):
            yield f"{key}/{one['name']}", one


def pod_labels(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """List the labels of pods, by the name of what makes them."""
    for key, one in ALL[name].items():
        spec = one.get("spec", {})
        if one["kind"] == "Pod":
            yield key, one["metadata"]["labels"]
        elif one["kind"] == "Deployment":
            yield key, spec["template"]["metadata"]["labels"]
        elif one["kind"] == "CronJob":
            yield key, spec["jobTemplate"]["spec"]["template"]["metadata"]["labels"]


def selected(selector: dict[str, str], labels: dict[str, str]) -> bool:
    """Tell whether labels are what a selector asks for."""
    return selector.items() <= labels.items()
