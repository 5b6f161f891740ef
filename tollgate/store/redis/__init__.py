"""Talk to one Redis or to a Redis Cluster."""
