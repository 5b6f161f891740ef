"""The journal at rest: sealed, chained, pseudonymised, and checked."""
