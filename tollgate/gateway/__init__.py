"""Run nginx before Triton: one template for chart and machine, keys, certificates."""
