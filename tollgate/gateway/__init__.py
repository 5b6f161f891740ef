"""nginx before Triton: one file for chart and machine, keys, certificates."""
