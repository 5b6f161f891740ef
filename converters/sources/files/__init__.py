"""Read the files of each framework field by field, before its library does."""
