"""Products that tests write into a model repository."""
