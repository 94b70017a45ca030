"""Java: the jars that are fetched, the Java that runs them, and the folders that only their user may read."""
