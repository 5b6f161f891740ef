"""Hold the former import path of the Python client, `clients.client`."""
