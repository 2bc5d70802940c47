"""What a sample is: its record, its fields, its classes."""
