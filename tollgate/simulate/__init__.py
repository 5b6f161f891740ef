"""
Simulate card purchases, some fraudulent, as a history to train models on.

The world is the one the Fraud Detection Handbook describes (Le Borgne, Siblini,
Lebichot, Bontempi, 2022): customers and terminals have positions on a square map, a
customer buys at the terminals within reach, and three scenarios make purchases
fraudulent. The code follows that description; amounts here are whole cents and every
label has a time from which it is known.
"""

from tollgate.simulate.history import simulate, write

__all__ = ["simulate", "write"]
