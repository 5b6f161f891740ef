"""Open-loop runs: send requests at scheduled times, and record the result of each."""
