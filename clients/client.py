"""Re-export `Client` for request scripts that import it from its former place."""

from tollgate_client import Client

__all__ = ["Client"]
