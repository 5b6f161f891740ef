"""Decide on a device from a signed bundle of one release."""
