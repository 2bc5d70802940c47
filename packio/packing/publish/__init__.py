"""Put a finished pack in its place: rename it, or upload it."""
