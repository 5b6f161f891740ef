"""Spool purchases that the store did not apply, and apply them when it is back."""
