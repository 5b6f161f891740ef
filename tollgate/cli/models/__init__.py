"""Features, policies and models: the commands of ML engineers."""
