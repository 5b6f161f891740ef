"""Measure where the time of a request goes."""
