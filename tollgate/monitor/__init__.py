"""
What decisions look like from afar: drift against training, mix, accuracy by release.

Reads the sealed journal and nothing else; writes nothing into it.
"""
