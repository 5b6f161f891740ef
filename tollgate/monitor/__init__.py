"""
Monitor sealed decisions: drift against training, decision mix, accuracy by release.

The monitor reads only the sealed journal, and writes nothing into it.
"""
