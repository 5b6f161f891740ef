"""Rank items for a user: candidates, their features, rules, diversity, exploration."""
