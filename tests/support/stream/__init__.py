"""Feeds, brokers and clocks for tests of the stream consumer."""
