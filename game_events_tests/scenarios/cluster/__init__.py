"""Spark on a standalone cluster and over Spark Connect."""
