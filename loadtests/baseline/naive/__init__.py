"""A first version, as most teams write it."""
