"""Anomalies of readings: features, a detector without labels, alarms, their quality."""
