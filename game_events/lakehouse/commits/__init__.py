"""Commits to Delta tables: compare-and-set, schema evolution, history, restores."""
