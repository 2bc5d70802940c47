"""What sources share that are tables: CSV, parquet, COCO and lists of labels."""
