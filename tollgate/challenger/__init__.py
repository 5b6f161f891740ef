"""A release on trial: scored beside the one that answers, counted, judged."""
