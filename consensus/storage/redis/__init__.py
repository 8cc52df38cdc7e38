"""A Redis server as a store."""
