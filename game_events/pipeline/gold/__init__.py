"""The gold layer."""
