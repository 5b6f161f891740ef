"""Baseline services that make the same decision without Triton, from simple to fast."""
