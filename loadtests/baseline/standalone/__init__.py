"""A service without a library of ours, as one engineer writes it in a week."""
