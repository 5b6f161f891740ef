"""The `lean` service with dynamic batching, as Triton does it, written by hand."""
