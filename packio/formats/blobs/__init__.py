"""What formats share whose samples lie one behind another in one array of bytes."""
