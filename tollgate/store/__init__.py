"""The online store: entity values in Redis, updated by one Lua function."""
