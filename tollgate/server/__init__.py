"""Run the embedded server: Triton and Redis from Python wheels, without Docker."""
