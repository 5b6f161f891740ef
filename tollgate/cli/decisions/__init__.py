"""Score rows, explain decisions, and use the sealed journal."""
