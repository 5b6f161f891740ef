"""The journal: write a record of every decision, off the request path."""
