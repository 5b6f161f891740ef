"""The first version with its parsing and its features mended."""
