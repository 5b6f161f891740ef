"""Answer from other sources when the store does not."""
