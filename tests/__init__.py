"""The tests, a package so that they can import `tests.support`."""
