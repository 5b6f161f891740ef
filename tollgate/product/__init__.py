"""A product out of a table: what its columns are, and the files that follow from it."""
