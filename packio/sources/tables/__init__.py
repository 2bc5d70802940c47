"""What sources share that have rows: columns, lines, Python values, boxes, and records of them."""
