"""Repositories with a challenger."""
