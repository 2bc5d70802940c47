"""What is packed, and in which order, before a byte is written."""
