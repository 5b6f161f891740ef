"""Report on raw results: figures, tables, pictures, and one HTML page."""
