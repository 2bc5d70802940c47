"""Plugins for packio, in a distribution of their own."""
