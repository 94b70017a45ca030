"""Offsets and row counts in bronze's commits."""
