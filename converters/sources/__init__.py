"""Read trained models: objects in memory and the files of each framework."""
