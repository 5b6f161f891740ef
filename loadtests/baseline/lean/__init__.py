"""The strongest service that we could write by hand."""
