"""Evaluate a model and write its card."""
