"""What packio knows about JPEG files beyond decoding them."""
