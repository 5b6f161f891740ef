"""
Create a product from a table: classify its columns, and write the product's files.
"""
