"""Tollgate: real-time decisions on payments, served by NVIDIA Triton."""

__version__ = "0.1.0"
