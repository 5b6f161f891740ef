"""Check a converted model before it becomes a version."""
