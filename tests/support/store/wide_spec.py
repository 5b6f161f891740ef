"""A features.yaml whose events have two columns besides the amount."""

WIDE = """\
version: 1
product: shop
entities:
  customer: {key: customer_id}
  terminal: {key: terminal_id}
fields: [{name: items, type: number}]
features:
  - {name: items_1d, entity: customer, aggregate: sum, of: items, window: 1d}
  - {name: shops_1d, entity: customer, aggregate: distinct, of: terminal_id, window: 1d}
  - {name: n_1d, entity: terminal, aggregate: count, window: 1d}
"""
