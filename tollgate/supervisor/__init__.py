"""Keep a product answering: watch its processes, heal what died, say how it is."""
