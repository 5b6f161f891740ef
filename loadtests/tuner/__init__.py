"""`tollgate tune`: which settings of the batcher let a server carry most, in time."""
