"""Ask a Tollgate server for decisions."""
