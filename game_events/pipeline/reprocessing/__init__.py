"""Replay and decoding once more."""
