"""Learn to rank a shop's items from a table of interactions, and judge it offline."""
