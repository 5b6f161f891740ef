"""Keep products answering: watch processes, restart failed ones, report the state."""
