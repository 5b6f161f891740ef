"""Seal decisions in a chain of links, and verify it."""
