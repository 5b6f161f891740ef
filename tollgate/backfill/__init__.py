"""Bring a history into the store, also into one that serves."""
