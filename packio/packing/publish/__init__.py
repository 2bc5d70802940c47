"""Put a finished pack in its place: one index over its shards, then a rename or an upload."""
