"""Send requests to a server at fixed rates, and record the result of each."""
