"""Dagster events: materializations, partitions, metadata."""
