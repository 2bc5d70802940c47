"""Encoded bytes to pixels: encodings, crops, frames, parts of images, resizing."""
