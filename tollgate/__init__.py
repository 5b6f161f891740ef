"""Tollgate: real-time decisions on payments, served by NVIDIA Triton."""

__version__ = "0.1.0"
# The distributions of this project. The package `tollgate` of another project, which
# PyPI has, lists none.
PARTS = ("tollgate", "tollgate_client", "tollgate_converters")
