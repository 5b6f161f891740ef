"""The journal: every decision leaves a record, off the path of the answer."""
