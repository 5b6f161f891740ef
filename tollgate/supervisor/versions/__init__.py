"""Detect, check and shadow model versions that are dropped into the repository."""
