"""Create products from tables, and the demo."""
