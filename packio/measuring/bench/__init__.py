"""Measurements that users run: decoders, loading, memory formats."""
