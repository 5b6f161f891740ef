"""Start and stop child processes, and check what they need."""
