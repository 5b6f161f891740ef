"""Decisions for tests of the journal."""
