"""Results of runs."""
