"""Measure and prove what a product that ranks must do: latency, truth, faults."""
