"""A reference implementation of the policy."""
