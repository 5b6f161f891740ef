"""Extract what explains a model's scores: trees, covers, coefficients."""
