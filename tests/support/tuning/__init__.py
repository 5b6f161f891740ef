"""Simulated servers for tests of tuning."""
