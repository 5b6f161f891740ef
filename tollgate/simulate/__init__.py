"""
Simulate card purchases with fraud in them, as a history that models learn from.

The world is the one the Fraud Detection Handbook describes (Le Borgne, Siblini,
Lebichot, Bontempi, 2022): customers and terminals have places on a square map, a
customer buys at the terminals within reach, and three scenarios make purchases
fraudulent. Written from that description; amounts here are whole cents and every
label has a time from which it is known.
"""

from tollgate.simulate.history import simulate, write

__all__ = ["simulate", "write"]
