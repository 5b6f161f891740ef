"""Load a history into the store, also while the store serves."""
