"""Data packed into shards, for reading speed."""
