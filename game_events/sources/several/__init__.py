"""Several sources of one bronze, each by its name in `SOURCES`."""
