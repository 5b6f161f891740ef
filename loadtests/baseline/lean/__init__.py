"""The fastest service that we could write by hand, without batching."""
