"""Queries: the index of a pack as Arrow columns, SQL expressions over them, and selections."""
