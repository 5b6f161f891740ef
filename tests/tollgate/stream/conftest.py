"""Kafka for the tests of this folder, and the way to its mock cluster."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mock_kafka import MockCluster

_numbers = itertools.count()


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[MockCluster]:
    """One cluster of three brokers for all tests."""
    cluster = MockCluster(3)
    yield cluster
    cluster.close()


@pytest.fixture
def make_topic(kafka_cluster: MockCluster) -> Callable[..., str]:
    """Make a topic that no other test uses; its name."""

    def make(*, partitions: int, name: str = "events") -> str:
        topic = f"{name}-{next(_numbers)}"
        kafka_cluster.create_topic(topic, partitions=partitions)
        kafka_cluster.create_topic(f"{topic}.dead-letters", partitions=1)
        return topic

    return make
