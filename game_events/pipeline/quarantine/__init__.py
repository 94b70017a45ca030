"""Rows that are kept out of bronze and silver."""
