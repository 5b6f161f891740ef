"""Keep a model repository in an object store."""
