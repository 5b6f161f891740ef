"""Independent computations for tests of the converters."""
