"""Define the metrics, and make alerts and dashboards from their table."""
