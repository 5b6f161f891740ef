"""The sealed journal: a hash chain of pseudonymised decisions, and its verification."""
