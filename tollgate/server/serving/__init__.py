"""Load releases and models into a running server."""
