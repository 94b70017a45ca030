"""Continuous mode."""
