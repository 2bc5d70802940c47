"""Measure training loops, decoders and loaders, and say what limits them."""
