"""The model repository: its configurations, its releases and whether they fit."""
