"""What Locust's users ask, when, and of whom; nothing here imports Locust."""
