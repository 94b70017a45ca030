"""What is told to Dagster: materializations, partitions, metadata."""
