"""Challengers: score a release in shadow or canary, count, and judge it by gates."""
