"""Check and run a product's own feature function."""
