"""Compare services, from the first version to Tollgate, with the same purchases."""
