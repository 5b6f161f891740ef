"""
The linter: rules with codes, over any Triton repository and a server's start line.

It reads files and starts nothing. docs/check.md lists the rules.
"""
