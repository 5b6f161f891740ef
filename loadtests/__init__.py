"""Load tests: what a running product answers, and how quickly."""
