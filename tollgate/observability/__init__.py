"""Make alerts and dashboards from the table of metrics."""
