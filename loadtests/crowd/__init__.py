"""Requests, timing and target of Locust's users; nothing here imports Locust."""
