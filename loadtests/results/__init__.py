"""Measure a run and report it."""
