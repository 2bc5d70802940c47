"""A pack, opened: its index found or made, its samples read."""
