"""`tollgate tune`: find the batcher settings that carry most load within the SLO."""
