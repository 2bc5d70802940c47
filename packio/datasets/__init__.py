"""Packs as PyTorch datasets: whole, in parts, several joined, and folders that are not packed."""
