"""Call the door's application without a network."""
