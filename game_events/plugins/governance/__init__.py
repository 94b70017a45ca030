"""Erasure of players."""
