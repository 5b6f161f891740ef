"""Feature specs, histories and a reference computation of features."""
