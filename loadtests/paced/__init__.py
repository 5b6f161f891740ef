"""Requests when they are due, by scenario, and what became of each."""
