"""What operators see: the table of metrics, alerts and dashboards made from it."""
