"""The embedded server: Triton out of the wheel, Redis out of the wheel, no Docker."""
