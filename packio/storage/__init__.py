"""Storage: bytes by range, wherever the files of a pack are."""
