"""Simulated servers for tests of the load tests."""
