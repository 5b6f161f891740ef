"""Sum an entity's events over windows."""
