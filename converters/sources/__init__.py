"""Where trained models come from: objects in memory and files of each framework."""
