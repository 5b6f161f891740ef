"""Serve, release, watch and tune: the commands of those who operate servers."""
