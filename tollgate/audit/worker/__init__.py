"""Consume the journal's stream: check, complete and seal records."""
