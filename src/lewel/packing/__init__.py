"""Data packed once into shards, for speed."""
