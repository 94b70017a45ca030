"""Spark sessions: configuration, Spark Connect, code for workers, crashed workers, schemas."""
