"""From the first version of the service to Tollgate: the same purchases, in turns."""
