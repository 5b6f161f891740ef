"""Make and send the requests of a load test."""
