"""Decisions over HTTP and JSON, for callers that do not speak gRPC."""
