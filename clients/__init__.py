"""Request decisions from a Tollgate server."""
