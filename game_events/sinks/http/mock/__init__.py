"""A receiver to try the export against."""
