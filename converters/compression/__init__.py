"""Make a model smaller, and measure the cost."""
