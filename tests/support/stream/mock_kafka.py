"""A Kafka cluster for tests: librdkafka's mock brokers, on real sockets."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka

_PRODUCER = 0
_ERROR_BYTES = 512


class MockCluster:
    """Brokers that speak the Kafka protocol on loopback, in a thread of their own."""

    def __init__(self, brokers: int) -> None:
        folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
        (library,) = folder.glob("librdkafka-*.so*")
        self._c = ctypes.CDLL(str(library))
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(self._c, name).restype = ctypes.c_void_p
        self._c.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        conf = ctypes.c_void_p(self._c.rd_kafka_conf_new())
        owner = self._c.rd_kafka_new(_PRODUCER, conf, error, _ERROR_BYTES)
        assert owner, error.value
        self._owner = ctypes.c_void_p(owner)
        cluster = self._c.rd_kafka_mock_cluster_new(self._owner, brokers)
        self._cluster = ctypes.c_void_p(cluster)
        # Three seconds otherwise, before the first member of a group gets anything.
        self._c.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 100)
        self.brokers = self._c.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def create_topic(self, name: str, *, partitions: int) -> None:
        """Make a topic."""
        failed = self._c.rd_kafka_mock_topic_create(
            self._cluster, name.encode(), partitions, 1
        )
        assert not failed, name

    def set_reachable(self, reachable: bool, *, broker: int = 1) -> None:
        """Cut a broker off, or let it be reached again."""
        name = "up" if reachable else "down"
        getattr(self._c, f"rd_kafka_mock_broker_set_{name}")(self._cluster, broker)

    def close(self) -> None:
        """Stop the brokers."""
        self._c.rd_kafka_mock_cluster_destroy(self._cluster)
        self._c.rd_kafka_destroy(self._owner)
