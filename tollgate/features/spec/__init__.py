"""Read, check, describe and compare features.yaml."""
