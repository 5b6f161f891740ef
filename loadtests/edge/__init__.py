"""Measure a device: equality, memory, latency, start, kills and losses of power."""
