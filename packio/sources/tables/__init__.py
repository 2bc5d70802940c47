"""Modules that the sources of tables share: CSV, JSON lines, Parquet and lists of labels."""
