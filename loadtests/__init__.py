"""Load tests: measure the answers of a running product and their latency."""
