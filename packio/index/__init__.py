"""The index file: its columns, and the order of its keys."""
