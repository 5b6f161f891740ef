"""Model repository: configurations, releases, and checks that they fit together."""
