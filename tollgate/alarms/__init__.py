"""Decide readings from a stream, and send alarms to a topic and to a webhook."""
