"""Read the trees of any framework into one form."""
