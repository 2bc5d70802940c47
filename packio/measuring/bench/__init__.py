"""Benchmarks for users: decoders, their fidelity, loading a pack, memory formats."""
