"""
Lint any Triton repository and a server's command line, by rules with codes.

The linter reads files and starts nothing. docs/check.md lists the rules.
"""
