"""One run: what it does before, in which order, for which tables."""
