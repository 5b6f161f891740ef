"""Purchases for tests of the clients."""
