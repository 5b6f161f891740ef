"""Steps in the test's process, and parameters of running ones."""
