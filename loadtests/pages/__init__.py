"""The report over raw results: figures, tables, pictures, a page."""
