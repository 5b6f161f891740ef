"""The strongest service, with the batching that Triton does, by hand."""
