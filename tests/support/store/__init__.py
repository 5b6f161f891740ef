"""Redis processes, certificates and rows for tests of the online store."""
