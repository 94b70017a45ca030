"""Older versions of a table."""
