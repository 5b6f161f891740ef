"""Define, compose, compare, activate and log releases."""
