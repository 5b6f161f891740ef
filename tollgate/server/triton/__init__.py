"""Start tritonserver, control its models, and probe them."""
