"""Start, damage and observe the servers of a load test."""
