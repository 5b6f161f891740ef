"""Shared code of the tests of devices."""
