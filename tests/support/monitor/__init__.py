"""Sealed journals and training distributions for tests of the monitor."""
