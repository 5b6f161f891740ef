"""Decide sealed records again with the release that decided them."""
