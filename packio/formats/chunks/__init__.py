"""What N5 and Zarr share: arrays of bytes in chunks."""
