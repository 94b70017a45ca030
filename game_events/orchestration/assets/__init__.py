"""The assets of the graph."""
