"""Alert histories and a live Prometheus."""
