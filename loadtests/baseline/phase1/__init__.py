"""The first version with faster parsing and faster features."""
