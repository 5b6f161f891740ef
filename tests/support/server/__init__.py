"""Candidates and models for tests of the server."""
