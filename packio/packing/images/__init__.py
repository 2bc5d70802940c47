"""What packing does to images: resize, encode, convert colours."""
