"""Gateways and their callers."""
