"""What formats share whose samples lie end to end in one array of bytes."""
