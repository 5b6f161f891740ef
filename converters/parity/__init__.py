"""Prove that a converted model predicts as its source does."""
