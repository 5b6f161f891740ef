"""How a client talks to the server's gRPC; the same for every client."""

from __future__ import annotations

CHANNEL_OPTIONS = (
    # The words for 32 bad rows travel as gRPC metadata, 8 KiB by default.
    ("grpc.max_metadata_size", 64 * 1024),
    ("grpc.absolute_max_metadata_size", 128 * 1024),
    # A restarted server is found within a second, not within two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # An http_proxy meant for the web does not carry payments.
    ("grpc.enable_http_proxy", 0),
)
